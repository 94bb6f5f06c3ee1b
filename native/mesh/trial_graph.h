// A small graph of one operation with pseudo-random content, for the trial of a device.
#pragma once

#include "ggml-cpp.h"
#include "ggml.h"

#include <functional>
#include <vector>

namespace mesh {

// Errors that are taken: mean squares of what is off, relative to those of the result. Rounding makes 1e-4 at most with
// weights and caches of few bits; a kernel that is wrong makes about 1
constexpr double MULTIPLIED_ERROR = 2e-3;
constexpr double OTHER_ERROR = 1e-4;

// Made twice, for the device and for the CPU, with the same content
class trial_graph {
public:
    // With room for so many `tensors`; a cache of keys and values has so many `cells`
    explicit trial_graph(int64_t tokens, size_t tensors = 256, int64_t cells = 256);

    typedef std::function<double(int64_t)> values; // element i of a tensor
    ggml_tensor * leaf(ggml_type type, const std::vector<int64_t> & ne, values of);
    // In [low, high)
    ggml_tensor * any(ggml_type type, const std::vector<int64_t> & ne, double low = -1.0, double high = 1.0);
    void result(ggml_tensor * tensor) { results.push_back(tensor); }

    // Of all its tensors
    uint64_t bytes() const;
    ggml_cgraph * graph();
    // Once there is memory for the leaves
    void fill() const;
    std::vector<std::vector<float>> read() const;

    const int64_t tokens;
    int64_t cells;
    const ggml_context_ptr context;
    double limit = OTHER_ERROR;

private:
    struct content {
        ggml_tensor * tensor;
        values of;
    };
    const size_t tensors;
    std::vector<content> leaves;
    std::vector<ggml_tensor *> results;
    ggml_cgraph * made = nullptr;
};

// Whether tensors of this type can be made of floats here
bool can_be_filled(ggml_type type);

} // namespace mesh
