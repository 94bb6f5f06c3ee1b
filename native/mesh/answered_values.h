// What values a worker's answers may have, where that follows from what was asked: a worker may be anybody's, and
// llama-server trusts what it reads.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>

namespace mesh {

// Tokens and candidates, which are places in a row of logits, are from 0 to below this; 0: nothing is known of the
// tensor
int64_t limit_of_places(const ggml_tensor * tensor);

// The first of these int32 that is not from 0 to below the limit; nullptr: there is none
const int32_t * find_beyond(const int32_t * values, size_t count, int64_t limit);

// Whether all that this tensor has is below its limit, or it has none: of its elements, not of what is between its rows
bool are_places(const ggml_tensor * tensor, const void * data);

} // namespace mesh
