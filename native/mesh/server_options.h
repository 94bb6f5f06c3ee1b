// The options of mesh-server, with which meshd starts it.
#pragma once

#include "device_speed.h"
#include "neighbours.h"

#include <stdexcept>
#include <string>
#include <vector>

namespace mesh {

extern const char USAGE[];

struct wrong_option : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct options {
    int socket = -1;
    int weights = -1;
    int report = -1;
    int arrivals = -1;
    int threads = 1;
    std::vector<std::string> devices;
    std::vector<uint64_t> memory;
    std::vector<neighbour_socket> neighbours;
    bool describe = false;
    std::string module;
    bool seals = false;
    bool list = false;
    std::string tried; // a device
    std::vector<std::string> operations;
    double tolerance = 1;
    std::string timed; // a device
    std::vector<timed_layers> kinds;

    // What this option is the number of, or nullptr
    int * descriptor(const std::string & name) {
        return name == "--fd"              ? &socket
               : name == "--weights-fd"    ? &weights
               : name == "--report-fd"     ? &report
               : name == "--neighbours-fd" ? &arrivals
                                           : nullptr;
    }
};

// Throws wrong_option
options parse_options(const std::vector<std::string> & words);

} // namespace mesh
