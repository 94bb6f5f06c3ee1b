// How many bytes a device wants for a tensor: more than its elements take, where kernels read or write behind them. A
// head has to know it without asking, so there is a rule, which a worker finds out and says in WELCOME.
#pragma once

#include "ggml-backend.h"

namespace mesh {

struct size_rule {
    uint32_t row_padding = 0;      // elements; as DEVICE of the protocol
    bool attention_copies = false; // likewise
    bool working_room = false;     // likewise
};

// At least as much as the device wants
uint64_t allocation_size(const size_rule & rule, const ggml_tensor * tensor);

// What a kernel may read behind any tensor, at most
uint64_t most_padding(const size_rule & rule);

// The rule that this memory follows. Throws std::runtime_error for one that there is no rule for
size_rule find_size_rule(ggml_backend_buffer_type_t memory);

} // namespace mesh
