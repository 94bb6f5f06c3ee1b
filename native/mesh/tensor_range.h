// Bytes of a buffer as a tensor, so that each backend's own way to move data is used.
#pragma once

#include "buffers.h"

#include "ggml-backend-impl.h"

namespace mesh {

class tensor_range {
public:
    tensor_range(place where, uint64_t size) : tensor() {
        tensor.type = GGML_TYPE_I8;
        tensor.ne[0] = static_cast<int64_t>(size);
        tensor.ne[1] = tensor.ne[2] = tensor.ne[3] = 1;
        tensor.nb[0] = 1;
        tensor.nb[1] = tensor.nb[2] = tensor.nb[3] = size;
        tensor.buffer = where.buffer;
        tensor.data = where.data;
    }

    ggml_tensor * get() { return &tensor; }
    void clear() { ggml_backend_tensor_memset(&tensor, 0, 0, static_cast<size_t>(tensor.ne[0])); }
    void write(const void * data, uint64_t offset, uint64_t size) {
        ggml_backend_tensor_set(&tensor, data, offset, size);
    }

private:
    ggml_tensor tensor;
};

} // namespace mesh
