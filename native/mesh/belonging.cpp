#include "belonging.h"

#include "ggml-impl.h"

#include <algorithm>
#include <vector>

namespace mesh {

// Ancestors looked at: the weights of an attention or a state are at most some forty above its result
static constexpr size_t MOST_SEEN = 128;

// Of a weight or cache, or a view of one; nullptr: it is computed
static ggml_backend_buffer_t memory_of(const ggml_tensor * tensor) {
    const ggml_backend_buffer_t memory = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
    const bool computed =
        memory != nullptr && ggml_backend_buffer_get_usage(memory) == GGML_BACKEND_BUFFER_USAGE_COMPUTE;
    return computed ? nullptr : memory;
}

static bool begins_layer(const ggml_tensor * op) {
    const bool norm = op->op == GGML_OP_RMS_NORM || op->op == GGML_OP_NORM;
    const bool first = norm || op->op == GGML_OP_GET_ROWS;
    const ggml_tensor * source = op->src[0];
    while (source != nullptr && (source->op == GGML_OP_RESHAPE || source->op == GGML_OP_VIEW)) {
        source = source->src[0];
    }
    const ggml_op from = source != nullptr ? source->op : GGML_OP_NONE;
    return first && (from == GGML_OP_ADD || from == GGML_OP_GET_ROWS || from == GGML_OP_SCALE);
}

// Of several devices that compute each layer together (--split-mode tensor): a part of it is ours, and no operation is
// for one of them alone
static bool is_joint(ggml_backend_buffer_type_t type) {
    ggml_backend_dev_t device = ggml_backend_buft_get_device(type);
    return device != nullptr && ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_META;
}

bool belongs_elsewhere(const ggml_tensor * op, ggml_backend_buffer_type_t type) {
    if (begins_layer(op)) {
        return false;
    }
    std::vector<const ggml_tensor *> seen = { op };
    bool elsewhere = false;
    for (size_t i = 0; i < seen.size(); i++) { // breadth first: the layer's own come before those of earlier layers
        for (const ggml_tensor * source : seen[i]->src) {
            if (source == nullptr || std::find(seen.begin(), seen.end(), source) != seen.end()) {
                continue;
            }
            const ggml_backend_buffer_t memory = memory_of(source);
            ggml_backend_buffer_type_t there = memory != nullptr ? ggml_backend_buffer_get_type(memory) : nullptr;
            if (there != nullptr && (there == type || is_joint(there))) {
                return false;
            }
            elsewhere = elsewhere || memory != nullptr;
            if (memory == nullptr && seen.size() < MOST_SEEN) {
                seen.push_back(source);
            }
        }
    }
    return elsewhere;
}

} // namespace mesh
