#include "answered_values.h"

#include "activations.h"

#include <algorithm>
#include <cstring>

namespace mesh {

// Chains of samplers are shorter
static constexpr int MOST_STEPS = 64;

static bool is_same_values(const ggml_tensor * tensor) {
    switch (tensor->op) {
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
    case GGML_OP_CONT:
    case GGML_OP_DUP:
    case GGML_OP_CPY:
    case GGML_OP_GET_ROWS: // of the source's values
        return true;
    default:
        return false;
    }
}

// Of a number that samplers compute as a float: a place in the row of logits
static int64_t row_of_logits(const ggml_tensor * tensor) {
    for (int step = 0; tensor != nullptr && step < MOST_STEPS; step++, tensor = tensor->src[0]) {
        if (is_logits(tensor)) {
            return tensor->ne[0];
        }
    }
    return 0;
}

int64_t limit_of_places(const ggml_tensor * tensor) {
    if (tensor->type != GGML_TYPE_I32) {
        return 0;
    }
    for (int step = 0; tensor != nullptr && tensor->type == GGML_TYPE_I32 && step < MOST_STEPS; step++) {
        if (tensor->op == GGML_OP_ARGMAX || tensor->op == GGML_OP_ARGSORT ||
            std::strcmp(ggml_op_name(tensor->op), "TOP_K") == 0) { // not every release has it
            return tensor->src[0] != nullptr ? tensor->src[0]->ne[0] : 0;
        }
        if (!is_same_values(tensor)) {
            return 0;
        }
        tensor = tensor->src[0] != nullptr ? tensor->src[0] : tensor->view_src;
    }
    return tensor != nullptr && tensor->type == GGML_TYPE_F32 ? row_of_logits(tensor) : 0;
}

const int32_t * find_beyond(const int32_t * values, size_t count, int64_t limit) {
    const int32_t * end = values + count;
    const int32_t * found = std::find_if(values, end, [limit](int32_t one) { return one < 0 || one >= limit; });
    return found != end ? found : nullptr;
}

bool are_places(const ggml_tensor * tensor, const void * data) {
    const int64_t limit = tensor->nb[0] == sizeof(int32_t) ? limit_of_places(tensor) : 0;
    for (int64_t row = 0; limit > 0 && row < ggml_nrows(tensor); row++) {
        const int64_t i1 = row % tensor->ne[1];
        const int64_t i2 = row / tensor->ne[1] % tensor->ne[2];
        const int64_t i3 = row / tensor->ne[1] / tensor->ne[2];
        const auto at = static_cast<size_t>(i1) * tensor->nb[1] + static_cast<size_t>(i2) * tensor->nb[2] +
                        static_cast<size_t>(i3) * tensor->nb[3];
        const auto * values = reinterpret_cast<const int32_t *>(static_cast<const uint8_t *>(data) + at);
        if (find_beyond(values, static_cast<size_t>(tensor->ne[0]), limit) != nullptr) {
            return false;
        }
    }
    return true;
}

} // namespace mesh
