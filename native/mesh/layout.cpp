#include "layout.h"

#include <algorithm>

namespace mesh {

layout check_layout(ggml_type type, const uint32_t (&ne)[4], const uint64_t (&nb)[4]) {
    const uint64_t type_size = ggml_type_size(type);
    const auto block = static_cast<uint64_t>(ggml_blck_size(type));
    if (ne[0] % block != 0 || (block > 1 && nb[0] != type_size)) {
        throw bad_message(std::string("a row that ") + ggml_type_name(type) + " cannot have");
    }
    const bool empty = std::any_of(ne, ne + 4, [](uint32_t n) { return n == 0; });
    const uint64_t blocks = ne[0] / block;
    uint64_t rows = 1;
    uint64_t dense = type_size * std::max<uint64_t>(blocks, 1);
    uint64_t span = type_size;
    for (int i = 0; i < 4; i++) {
        // what has no elements is no wider than what has: its sizes are multiplied as well
        const uint64_t n = i == 0 ? std::max<uint64_t>(blocks, 1) : std::max(ne[i], 1u);
        if (ne[i] > MAX_COUNT || (ne[i] > 1 && nb[i] % type_size != 0)) {
            throw bad_message("a dimension that no tensor has");
        }
        // a stride that is never taken may be anything, also more than a buffer has
        if (n > 1 && nb[i] >= MAX_DENSE / n) {
            throw bad_message("a tensor that is too large");
        }
        span += n > 1 ? (n - 1) * nb[i] : 0;
        if (i > 0) {
            rows *= n; // each factor is below 2^31, and so is the product before
            dense = dense > MAX_DENSE / n ? MAX_DENSE : dense * n;
        }
        if (rows > static_cast<uint64_t>(MAX_COUNT) || dense >= MAX_DENSE || span >= MAX_DENSE) {
            throw bad_message("a tensor that is too large");
        }
    }
    return { empty ? 0 : span, empty ? 0 : dense };
}

} // namespace mesh
