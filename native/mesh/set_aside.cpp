#include "set_aside.h"

#include "client.h"

#include "ggml-impl.h"

namespace mesh {

// Candidates and probabilities have at most 256 values (MOST_CANDIDATES in meshd/model/device_sampling.py), a token is
// one. Larger results stay where they are: logits and states are results in every graph, but what a chain of a user's
// own gives back of a whole vocabulary may still be overwritten
static constexpr uint64_t SMALL_BYTES = 256 * sizeof(float);

const ggml_tensor * base_of(const ggml_tensor * tensor) {
    return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

static bool is_small_result(const client_device & device, const ggml_tensor * node) {
    const client_buffer * buffer = buffer_of(node);
    return (node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 && node->view_src == nullptr && buffer != nullptr &&
           buffer->device == &device && ggml_nbytes(node) <= SMALL_BYTES;
}

set_aside results_of(client_device & device, const ggml_cgraph * graph) {
    set_aside results;
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (!is_small_result(device, node)) {
            continue;
        }
        const uint64_t size = GGML_PAD(allocation_size(device.rule, node), device.alignment);
        if (results.size + size > RESULTS_BYTES) {
            break; // the others stay where they are
        }
        results.places.emplace(node, results.size);
        results.size += size;
    }
    return results;
}

bool has_room(client_device & device) {
    if (device.results == nullptr) {
        device.results = ask_for(device, RESULTS_BYTES);
    }
    return device.results != nullptr;
}

uint64_t next_place(client_device & device, const set_aside & results) {
    if (device.results_end + results.size > RESULTS_BYTES) {
        device.results_end = 0;
    }
    const uint64_t first = device.results_end;
    device.results_end += results.size;
    return first;
}

void note_results(client_device & device, const ggml_cgraph * graph, const set_aside & results, uint64_t first) {
    if (!device.aside.empty()) {
        for (int i = 0; i < graph->n_nodes; i++) {
            device.aside.erase(graph->nodes[i]); // what this was in an older graph
        }
    }
    for (const auto & [tensor, place] : results.places) {
        device.aside[tensor] = first + place;
    }
}

remote_place place_of(const ggml_tensor * tensor) {
    const client_buffer * own = buffer_of(tensor);
    client_device & device = *own->device;
    const ggml_tensor * base = base_of(tensor);
    std::lock_guard<std::mutex> lock(device.worker->link.order);
    const auto found = device.aside.find(base);
    if (found == device.aside.end()) {
        return { own->number, offset_in(own, tensor) };
    }
    return { device.results->number, found->second + (offset_in(own, tensor) - offset_in(own, base)) };
}

} // namespace mesh
