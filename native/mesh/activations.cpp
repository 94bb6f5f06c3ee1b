#include "activations.h"

#include "protocol.h"

#include "ggml-backend-impl.h"

#include <cstring>
#include <stdexcept>

namespace mesh {

// Shorter rows are weights of experts, gates, scales: they are little, and say much
static constexpr int64_t LEAST_ROW = 64;
static constexpr int64_t MOST_ROW = PIECE_BYTES / sizeof(float);

// Logits, and what samplers make of them, are cut off where the device lacks their operations
static constexpr int MOST_STEPS = 32;

static bool as_halves = false;

// llama.cpp calls them so in every graph, and its copies of them by a name with that in it
bool is_logits(const ggml_tensor * tensor) {
    return std::strstr(tensor->name, "result_output") != nullptr;
}

static bool is_from_logits(const ggml_tensor * tensor) {
    for (int step = 0; tensor != nullptr && step < MOST_STEPS; step++) {
        if (is_logits(tensor)) {
            return true;
        }
        tensor = tensor->src[0] != nullptr ? tensor->src[0] : tensor->view_src;
    }
    return false;
}

void choose_activations(const std::string & kind) {
    if (!kind.empty() && kind != "f32" && kind != "f16") {
        throw std::runtime_error("GGML_MESH_ACTIVATIONS is `" + kind + "`, neither f32 nor f16");
    }
    as_halves = kind == "f16";
}

bool is_activation(const ggml_tensor * tensor) {
    const ggml_tensor * root = tensor->view_src != nullptr ? tensor->view_src : tensor;
    const bool computed = root->op != GGML_OP_NONE && root->buffer != nullptr &&
                          ggml_backend_buffer_get_usage(root->buffer) == GGML_BACKEND_BUFFER_USAGE_COMPUTE;
    const bool of_user = (root->flags & GGML_TENSOR_FLAG_INPUT) != 0;
    const bool rows = tensor->type == GGML_TYPE_F32 && tensor->ne[0] >= LEAST_ROW && tensor->ne[0] <= MOST_ROW &&
                      ggml_nelements(tensor) > 0 && ggml_is_contiguous(tensor);
    return computed && !of_user && rows && !is_from_logits(tensor);
}

uint32_t row_of_activation(const ggml_tensor * tensor) {
    return as_halves && is_activation(tensor) ? static_cast<uint32_t>(tensor->ne[0]) : 0;
}

} // namespace mesh
