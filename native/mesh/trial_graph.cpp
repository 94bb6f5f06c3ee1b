#include "trial_graph.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>

namespace mesh {

trial_graph::trial_graph(int64_t tokens, size_t tensors, int64_t cells) :
    tokens(tokens), cells(cells),
    context(
        ggml_init({ tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(tensors, false), nullptr, true })),
    tensors(tensors) {}

ggml_tensor * trial_graph::leaf(ggml_type type, const std::vector<int64_t> & ne, values of) {
    ggml_tensor * tensor = ggml_new_tensor(context.get(), type, static_cast<int>(ne.size()), ne.data());
    leaves.push_back({ tensor, std::move(of) });
    return tensor;
}

ggml_tensor * trial_graph::any(ggml_type type, const std::vector<int64_t> & ne, double low, double high) {
    const uint64_t base = static_cast<uint64_t>(tokens) + 0x100000000 * (leaves.size() + 1);
    return leaf(type, ne, [=](int64_t i) {
        uint64_t x = (base + static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
        x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
        return low + (high - low) * (static_cast<double>(x >> 40) / 16777216.0);
    });
}

uint64_t trial_graph::bytes() const {
    constexpr uint64_t MOST = uint64_t(1) << 50; // more is too much, and the sum is not to turn over
    uint64_t sum = 0;
    for (ggml_tensor * one = ggml_get_first_tensor(context.get()); one != nullptr;
        one = ggml_get_next_tensor(context.get(), one)) {
        sum += one->view_src != nullptr ? 0 : std::min<uint64_t>(ggml_nbytes(one), MOST);
    }
    return sum;
}

ggml_cgraph * trial_graph::graph() {
    if (made == nullptr) {
        made = ggml_new_graph_custom(context.get(), tensors, false);
        for (ggml_tensor * tensor : results) {
            ggml_build_forward_expand(made, tensor);
        }
    }
    return made;
}

bool can_be_filled(ggml_type type) {
    return ggml_is_quantized(type) ? type != GGML_TYPE_Q8_1 && type != GGML_TYPE_Q8_K
                                   : type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

template <class Number> static std::vector<uint8_t> numbers(int64_t count, const trial_graph::values & of) {
    std::vector<uint8_t> data(static_cast<size_t>(count) * sizeof(Number));
    for (int64_t i = 0; i < count; i++) {
        const auto value = static_cast<Number>(of(i));
        std::memcpy(data.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
    }
    return data;
}

static std::vector<uint8_t> floats(const ggml_tensor * tensor, const trial_graph::values & of) {
    std::vector<uint8_t> data(ggml_nbytes(tensor));
    std::vector<float> dense(static_cast<size_t>(ggml_nelements(tensor)));
    for (size_t i = 0; i < dense.size(); i++) {
        dense[i] = static_cast<float>(of(static_cast<int64_t>(i)));
    }
    const std::vector<float> importance(static_cast<size_t>(tensor->ne[0]), 1.0f);
    ggml_quantize_chunk(
        tensor->type, dense.data(), data.data(), 0, ggml_nrows(tensor), tensor->ne[0], importance.data());
    return data;
}

void trial_graph::fill() const {
    for (const auto & leaf : leaves) {
        const int64_t count = ggml_nelements(leaf.tensor);
        const std::vector<uint8_t> data = leaf.tensor->type == GGML_TYPE_I32   ? numbers<int32_t>(count, leaf.of)
                                          : leaf.tensor->type == GGML_TYPE_I64 ? numbers<int64_t>(count, leaf.of)
                                                                               : floats(leaf.tensor, leaf.of);
        ggml_backend_tensor_set(leaf.tensor, data.data(), 0, data.size());
    }
}

std::vector<std::vector<float>> trial_graph::read() const {
    std::vector<std::vector<float>> all;
    for (const ggml_tensor * tensor : results) {
        std::vector<uint8_t> data(ggml_nbytes(tensor));
        ggml_backend_tensor_get(tensor, data.data(), 0, data.size());
        std::vector<float> dense(static_cast<size_t>(ggml_nelements(tensor)));
        if (tensor->type == GGML_TYPE_F32) {
            std::memcpy(dense.data(), data.data(), data.size());
        } else {
            ggml_get_type_traits(tensor->type)->to_float(data.data(), dense.data(), static_cast<int64_t>(dense.size()));
        }
        all.push_back(std::move(dense));
    }
    return all;
}

} // namespace mesh
