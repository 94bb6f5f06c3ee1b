// Whether a tensor from the wire can have its type and shape at all. ggml's constructors make sure of this for whoever
// calls them, and its kernels rely on it.
#pragma once

#include "protocol.h"

#include "ggml.h"

namespace mesh {

// Far from where products of sizes overflow, far above any buffer
constexpr uint64_t MAX_DENSE = 1ull << 47;

// Kernels count rows, elements of a row and more as int, and add a few for each thread
constexpr int64_t MAX_COUNT = INT32_MAX - 65536;

// Bytes from the first to behind the last element, as ggml_nbytes() but without overflow, and what the elements would
// take without gaps or overlap.
struct layout {
    uint64_t span;
    uint64_t dense;
};

// Throws bad_message
layout check_layout(ggml_type type, const uint32_t (&ne)[4], const uint64_t (&nb)[4]);

} // namespace mesh
