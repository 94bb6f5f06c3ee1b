// mesh-server: lends devices of this machine to the one head at the other end of an inherited socket, and ends with it.
#include "describe.h"
#include "descriptor.h"
#include "device_list.h"
#include "device_trial.h"
#include "neighbour_arrivals.h"
#include "report.h"
#include "session.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include <dlfcn.h>
#include <unistd.h>

namespace mesh {

static const char USAGE[] = R"(usage: mesh-server --fd N [options]
       mesh-server --describe [MODULE]
       mesh-server --list-devices
       mesh-server --try-device NAME --try OPERATION[,OPERATION] [--try-tolerance F]

  --fd N             serve the head at the other end of this inherited socket
  --device NAME      lend this device; may be given several times (default: the CPU)
  --threads N        of a CPU (default: 1)
  --memory B[,B]     bytes that the head may hold on each device (default: what it has)
  --neighbour K:N    worker K of the head is at the other end of this socket: push to it, and take from it
  --neighbours-fd N  more neighbours are handed over there; the head is welcomed once all of them are there
  --weights-fd N     read the weights index there; its `file` lines name further descriptors
  --report-fd N      lines for the parent process: `loaded TENSORS BYTES` from files, and `failed WHY` before it exits
  --describe         print what this program, or a libggml-mesh.so, is: one line of JSON
  --list-devices     print a line for each device: name, kind, id of the hardware or -, total and free bytes, description
  --try-device NAME  compute such operations as mul_mat:q4_0:576 on this device and the CPU, print what came of each, and
                     exit with 2 if one was wrong or failed, with 1 if there is no such device
  --try-tolerance F  multiply the largest error that is taken (default: 1)
)";

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
    bool list = false;
    std::string tried; // a device
    std::vector<std::string> operations;
    double tolerance = 1;

    // What this option is the number of, or nullptr
    int * descriptor(const std::string & name) {
        return name == "--fd"              ? &socket
               : name == "--weights-fd"    ? &weights
               : name == "--report-fd"     ? &report
               : name == "--neighbours-fd" ? &arrivals
                                           : nullptr;
    }
};

static uint64_t number(const std::string & name, const std::string & text, uint64_t least, uint64_t most) {
    char * end = nullptr;
    const uint64_t value = std::strtoull(text.c_str(), &end, 10);
    if (text.empty() || text[0] < '0' || text[0] > '9' || *end != '\0' || value < least || value > most) {
        throw wrong_option(name + " takes a number from " + std::to_string(least) + " to " + std::to_string(most) +
                           ", not `" + text + "`");
    }
    return value;
}

static neighbour_socket parse_neighbour(const std::string & text, const std::vector<neighbour_socket> & before) {
    const size_t colon = text.find(':');
    neighbour_socket found = {};
    if (colon == std::string::npos || !parse_descriptor(text.substr(colon + 1), found.socket)) {
        throw wrong_option("--neighbour takes NUMBER:DESCRIPTOR, not `" + text + "`");
    }
    found.number = static_cast<uint32_t>(number("--neighbour", text.substr(0, colon), 0, NEIGHBOURS - 1));
    for (const auto & one : before) {
        if (one.number == found.number) {
            throw wrong_option("neighbour " + std::to_string(found.number) + " is there twice");
        }
    }
    return found;
}

// Empty words as well, so that nothing that is missing goes unseen.
static std::vector<std::string> split(const std::string & text) {
    std::vector<std::string> words;
    size_t begin = 0;
    for (size_t end = text.find(','); end != std::string::npos; end = text.find(',', begin)) {
        words.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    words.push_back(text.substr(begin));
    return words;
}

static double factor(const std::string & name, const std::string & text) {
    char * end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end != '\0' || !(value >= 0)) {
        throw wrong_option(name + " takes a factor, not `" + text + "`");
    }
    return value;
}

// Of a trial. false: it is another option
static bool take_trial(options & found, const std::string & name, const std::string & value) {
    if (name == "--try-device") {
        found.tried = value;
    } else if (name == "--try") {
        found.operations = split(value);
    } else if (name == "--try-tolerance") {
        found.tolerance = factor(name, value);
    } else {
        return false;
    }
    return true;
}

static options parse(const std::vector<std::string> & words) {
    options found;
    for (size_t i = 0; i < words.size(); i++) {
        const std::string & name = words[i];
        if (name == "--describe") {
            found.describe = true;
            found.module = i + 1 < words.size() ? words[++i] : "";
            continue;
        }
        if (name == "--list-devices") {
            found.list = true;
            continue;
        }
        if (i + 1 == words.size()) {
            throw wrong_option("`" + name + "` is no option, or lacks its value");
        }
        const std::string & value = words[++i];
        if (int * descriptor = found.descriptor(name)) {
            if (!parse_descriptor(value, *descriptor)) {
                throw wrong_option(name + ": `" + value + "` is no inherited descriptor");
            }
        } else if (name == "--neighbour") {
            found.neighbours.push_back(parse_neighbour(value, found.neighbours));
        } else if (name == "--device") {
            found.devices.push_back(value);
        } else if (name == "--threads") {
            found.threads = static_cast<int>(number(name, value, 1, 1024));
        } else if (name == "--memory") {
            for (const auto & part : split(value)) {
                found.memory.push_back(number(name, part, 1, 1ull << 47));
            }
        } else if (!take_trial(found, name, value)) {
            throw wrong_option("there is no option `" + name + "`");
        }
    }
    if (!found.describe && !found.list && found.tried.empty() && found.socket < 0) {
        throw wrong_option("--fd is missing");
    }
    return found;
}

static int describe_module(const std::string & path) {
    void * module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    typedef const char * (*describe_function)();
    const auto function =
        module == nullptr ? nullptr : reinterpret_cast<describe_function>(dlsym(module, "ggml_mesh_describe"));
    if (function == nullptr) {
        throw wrong_option("`" + path + "` is no libggml-mesh.so: " + dlerror());
    }
    std::puts(function());
    return 0;
}

static ggml_backend_t open_device(const std::string & name, int threads) {
    ggml_backend_dev_t device = ggml_backend_dev_by_name(name.c_str());
    ggml_backend_t backend = device == nullptr ? nullptr : ggml_backend_dev_init(device, nullptr);
    if (backend == nullptr) {
        throw wrong_option("there is no device `" + name + "`, or it cannot be used");
    }
    const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device), "ggml_backend_set_n_threads"));
    if (set_threads != nullptr) {
        set_threads(backend, threads);
    }
    return backend;
}

static size_rule rule_of(ggml_backend_t backend) {
    try {
        return find_size_rule(ggml_backend_get_default_buffer_type(backend));
    } catch (const std::runtime_error & error) {
        throw wrong_option(
            std::string("the device `") + ggml_backend_name(backend) + "` cannot be lent: " + error.what());
    }
}

// Memory that a device copies from and to by itself, for messages; what it has none of goes without
static void lock_staging(ggml_backend_t backend) {
    static bool done = false;
    ggml_backend_buffer_type_t type = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(backend));
    if (done || type == nullptr || is_cpu(backend)) {
        return;
    }
    ggml_backend_buffer_t memory = ggml_backend_buft_alloc_buffer(type, STAGING_BYTES);
    if (memory != nullptr) {
        open_staging(ggml_backend_buffer_get_base(memory), STAGING_BYTES); // for as long as the process is
        done = true;
    }
}

static std::vector<lent_device> open_devices(const options & chosen) {
    std::vector<lent_device> devices;
    std::vector<std::string> names = chosen.devices;
    if (names.empty()) {
        names.emplace_back("CPU");
    }
    if (names.size() > DEVICES || (chosen.memory.size() > 1 && chosen.memory.size() != names.size())) {
        throw wrong_option("too many devices, or not a limit of memory for each");
    }
    for (size_t i = 0; i < names.size(); i++) {
        ggml_backend_t backend = open_device(names[i], chosen.threads);
        lock_staging(backend);
        size_t free = 0;
        size_t total = 0;
        ggml_backend_dev_memory(ggml_backend_get_device(backend), &free, &total);
        const size_t last = chosen.memory.empty() ? 0 : std::min(i, chosen.memory.size() - 1);
        devices.push_back(
            { backend, chosen.memory.empty() ? total : chosen.memory[last], rule_of(backend), chosen.threads });
    }
    return devices;
}

// Threads that are stuck in a driver cannot be joined
static void abandon() {
    static const char why[] = "the head is gone, and the device does not come back";
    std::fprintf(stderr, "mesh-server: %s\n", why);
    report(std::string("failed ") + why);
    _exit(1);
}

// A parent that does not know how to hand neighbours over has started the wrong program
static void refuse_arrivals(const std::string & why) {
    std::fprintf(stderr, "mesh-server: --neighbours-fd: %s\n", why.c_str());
    _exit(2);
}

static void load_backends() {
    unsetenv("GGML_BACKEND_PATH"); // meant for heads
    ggml_backend_load_all();
}

// A driver may end the process at any time: what has been found out is there by then
static void print(const std::string & line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
}

static int try_out(const options & chosen) {
    load_backends();
    ggml_backend_dev_t device = ggml_backend_dev_by_name(chosen.tried.c_str());
    if (device == nullptr) {
        std::fprintf(stderr, "mesh-server: there is no device `%s`\n", chosen.tried.c_str());
        return 1;
    }
    return try_device(device, chosen.operations, chosen.tolerance, print);
}

static int serve(const options & chosen) {
    if (chosen.report >= 0) {
        open_report(chosen.report);
    }
    const local_weights files = chosen.weights < 0
                                    ? local_weights()
                                    : local_weights(weights_index(read_text(chosen.weights, weights_index::MAX_TEXT)));
    load_backends();
    const std::vector<lent_device> devices = open_devices(chosen);
    if (std::none_of(devices.begin(), devices.end(), [](const lent_device & one) { return is_cpu(one.backend); })) {
        lookout::allow(); // a CPU would compute with fewer threads
    }
    {
        channel head(chosen.socket, sender::head);
        neighbours others(chosen.neighbours, chosen.arrivals >= 0);
        const auto coming =
            chosen.arrivals < 0 ? nullptr : std::make_unique<arrivals>(chosen.arrivals, others, refuse_arrivals);
        session(head, devices, files, others, abandon).run();
    }
    for (const auto & device : devices) {
        ggml_backend_free(device.backend);
    }
    return 0;
}

static int run(const std::vector<std::string> & words) {
    try {
        const options chosen = parse(words);
        if (chosen.describe && chosen.module.empty()) {
            std::puts(describe("mesh-server").c_str());
            return 0;
        }
        if (chosen.list) {
            load_backends();
            for (const auto & line : list_devices()) {
                print(line);
            }
            return 0;
        }
        if (!chosen.tried.empty()) {
            return try_out(chosen);
        }
        return chosen.describe ? describe_module(chosen.module) : serve(chosen);
    } catch (const wrong_option & error) {
        std::fprintf(stderr, "mesh-server: %s\n%s", error.what(), USAGE);
        return 2;
    } catch (const lost & error) { // as if it had been done: whoever waits for the reason has to ask it
        std::fprintf(stderr, "mesh-server: the head is gone: %s\n", error.what());
        return 0;
    } catch (const std::exception & error) {
        std::fprintf(stderr, "mesh-server: %s\n", error.what());
        report(std::string("failed ") + error.what());
        return 1;
    }
}

} // namespace mesh

int main(int argc, char ** argv) {
    std::signal(SIGPIPE, SIG_IGN);
    return mesh::run(std::vector<std::string>(argv + 1, argv + argc));
}
