// libggml-mesh.so: what ggml loads by GGML_BACKEND_PATH. Its workers are the sockets of GGML_MESH_FDS, numbers of
// inherited descriptors with commas between them; GGML_MESH_DEVICES says how many devices each has, and
// GGML_MESH_MEMORY how many bytes of each device are lent. GGML_MESH_WEIGHTS_FD is that of the weights index, and
// GGML_MESH_REPORT_FD that of lines for the parent process. GGML_MESH_ACTIVATIONS says how hidden states cross.
#include "activations.h"
#include "client.h"
#include "client_sums.h"
#include "describe.h"
#include "descriptor.h"
#include "host.h"
#include "lookout.h"
#include "read_ahead.h"
#include "release.h"
#include "report.h"
#include "variable.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace mesh {

static std::vector<client_device *> all_devices;
static ggml_backend_reg registry = {};

static const char * get_name(ggml_backend_reg_t) {
    return "MESH";
}

static size_t get_device_count(ggml_backend_reg_t) {
    return all_devices.size();
}

static ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t index) {
    return &all_devices[index]->device;
}

static void * get_address(ggml_backend_reg_t, const char * name) {
    const std::string wanted = name;
    if (wanted == "ggml_backend_comm_init") {
        return reinterpret_cast<void *>(open_sums);
    }
    if (wanted == "ggml_backend_comm_free") {
        return reinterpret_cast<void *>(close_sums);
    }
    return wanted == "ggml_backend_comm_allreduce_tensor" ? reinterpret_cast<void *>(compute_sum) : nullptr;
}

static int descriptor_of(const char * name, const std::string & text) {
    int descriptor;
    if (!parse_descriptor(text, descriptor)) {
        throw std::runtime_error(std::string(name) + ": `" + text + "` is no inherited descriptor");
    }
    return descriptor;
}

// 0: none is said
static uint32_t next_count(std::istringstream & counts) {
    std::string text;
    if (!std::getline(counts, text, ',')) {
        return 0;
    }
    const int count = std::atoi(text.c_str());
    if (count < 1 || count > static_cast<int>(DEVICES)) {
        throw std::runtime_error("GGML_MESH_DEVICES: `" + text + "` is no number of devices");
    }
    return static_cast<uint32_t>(count);
}

static std::vector<worker_socket> inherited_sockets() {
    std::vector<worker_socket> sockets;
    std::istringstream numbers(variable("GGML_MESH_FDS"));
    std::istringstream counts(variable("GGML_MESH_DEVICES"));
    for (std::string number; std::getline(numbers, number, ',');) {
        const int socket = descriptor_of("GGML_MESH_FDS", number);
        sockets.push_back({ socket, next_count(counts) });
    }
    return sockets;
}

// Of all devices, in their order; none is said: as the workers say
static void take_memory() {
    static const char name[] = "GGML_MESH_MEMORY";
    const std::string text = variable(name);
    std::istringstream parts(text);
    size_t count = 0;
    for (std::string part; std::getline(parts, part, ','); count++) {
        if (part.empty() || part.size() > 18 || part.find_first_not_of("0123456789") != std::string::npos ||
            count == all_devices.size()) {
            throw std::runtime_error(std::string(name) + ": `" + text + "` are not the bytes of each device");
        }
        all_devices[count]->lent_bytes = std::stoull(part);
    }
    if (count != 0 && count != all_devices.size()) {
        throw std::runtime_error(std::string(name) + ": `" + text + "` lacks devices");
    }
}

static const weights_index & index_of_head() {
    static const char name[] = "GGML_MESH_WEIGHTS_FD";
    static const std::string text = variable(name);
    static const weights_index index =
        text.empty() ? weights_index() : weights_index(read_text(descriptor_of(name, text), weights_index::MAX_TEXT));
    return index;
}

// ggml's interface is compiled in, and the number of its version stays the same when it changes
static void check_host() {
    const std::string ggml = host_ggml();
    if (variable("GGML_MESH_FDS").empty()) {
        report("host " + (ggml.empty() ? "unknown" : ggml)); // without workers we are only tried
    }
    if (!ggml.empty() && ggml != ggml_release()) {
        throw std::runtime_error("this llama.cpp has ggml " + ggml + ", the module was made for " + ggml_release());
    }
}

static ggml_backend_reg_t open_all() {
    registry.api_version = GGML_BACKEND_API_VERSION;
    registry.iface.get_name = get_name;
    registry.iface.get_device_count = get_device_count;
    registry.iface.get_device = get_device;
    registry.iface.get_proc_address = get_address;
    try {
        const std::string reports = variable("GGML_MESH_REPORT_FD");
        if (!reports.empty()) {
            open_report(descriptor_of("GGML_MESH_REPORT_FD", reports));
        }
        check_host();
        choose_waiting();
        choose_activations(variable("GGML_MESH_ACTIVATIONS"));
        choose_sums(variable("GGML_MESH_SUMS"));
        all_devices = open_workers(inherited_sockets(), &registry, index_of_head());
        take_memory();
        if (!all_devices.empty()) {
            keep_unread(index_of_head());
        }
    } catch (const std::exception & error) {
        std::fprintf(stderr, "mesh: %s\n", error.what());
        return nullptr;
    }
    return &registry;
}

} // namespace mesh

#define MESH_EXPORT extern "C" __attribute__((visibility("default")))

MESH_EXPORT ggml_backend_reg_t ggml_backend_init() {
    static ggml_backend_reg_t opened = mesh::open_all();
    return opened;
}

// For mesh-server --describe
MESH_EXPORT const char * ggml_mesh_describe() {
    static const std::string text = mesh::describe("libggml-mesh");
    return text.c_str();
}
