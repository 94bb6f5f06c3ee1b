// A client whose worker has a late device; all for as long as the process is.
#pragma once

#include "client.h"
#include "late_device.h"
#include "served.h"

namespace mesh {

inline ggml_backend_t open_late_client(
    late_device & device, uint32_t place = 0, const std::vector<neighbour_socket> & sockets = {}) {
    static const weights_index none;
    static ggml_backend_reg no_registry = {};
    auto * server = new served(sockets, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    server->detach();
    const auto devices = open_workers({ { server->own_end } }, &no_registry, none, place);
    return ggml_backend_dev_init(&devices[0]->device, nullptr);
}

} // namespace mesh
