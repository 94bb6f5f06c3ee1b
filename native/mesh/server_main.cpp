// mesh-server: lends devices of this machine to the one head at the other end of an inherited socket, and ends with it.
#include "describe.h"
#include "descriptor.h"
#include "device_list.h"
#include "device_trial.h"
#include "lookout.h"
#include "neighbour_arrivals.h"
#include "report.h"
#include "sealing.h"
#include "server_options.h"
#include "session.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <dlfcn.h>
#include <unistd.h>

namespace mesh {

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
        report("free " + names[i] + " " + std::to_string(free)); // before anything of the head is there
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

static int time_it(const options & chosen) {
    load_backends();
    ggml_backend_t backend = open_device(chosen.timed, chosen.threads);
    const int code = time_device(backend, chosen.threads, chosen.kinds, print);
    ggml_backend_free(backend);
    return code;
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
    choose_waiting();
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
        const options chosen = parse_options(words);
        if (chosen.describe && chosen.module.empty()) {
            std::puts(describe("mesh-server").c_str());
            return 0;
        }
        if (chosen.seals) { // a question of its own: a library that does not load must not spoil the other answers
            std::puts(can_seal() ? "{\"seals\": true}" : "{\"seals\": false}");
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
        if (!chosen.timed.empty()) {
            return time_it(chosen);
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
