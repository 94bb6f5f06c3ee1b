// Where the scheduler should compute what has no weights: beside those of its layer.
#pragma once

#include "ggml-backend.h"

namespace mesh {

// Whether `op` comes from weights or caches (of its nearest ancestors), none of which is in memory of this type.
// The scheduler gives an operation without weights to whichever device computes next. At the end of a layer both
// operands of the sum would cross instead of the sum, and attention would follow a recurrent layer and take the cache
// along, or lose its flash attention. A device that refuses such an operation leaves it with its layer.
// What a layer does first with the sum or the embeddings that came before it, a norm or the choice of rows, is not
// refused: they alone cross.
bool belongs_elsewhere(const ggml_tensor * op, ggml_backend_buffer_type_t type);

} // namespace mesh
