// A client whose worker is a CPU in this process; all for as long as the process is.
#pragma once

#include "check.h"
#include "client.h"
#include "served.h"

namespace mesh {

inline ggml_backend_t open_client(uint32_t place = 0, const std::vector<neighbour_socket> & sockets = {}) {
    static const weights_index none;
    static ggml_backend_reg no_registry = {};
    auto * server = new served(sockets);
    server->detach();
    const auto devices = open_workers({ { server->own_end } }, &no_registry, none, place);
    CHECK(devices.size() == 1 && devices[0]->name == "MESH" + std::to_string(place));
    return ggml_backend_dev_init(&devices[0]->device, nullptr);
}

} // namespace mesh
