// The server under test: its source is compiled in here, so only one file of a program may include this.
#pragma once

#include "ggml-backend.h"

#include <cstdint>

// Where the buffer that was allocated last really is: the client is not told
static uint64_t last_base;

static ggml_backend_buffer_t watched_alloc_buffer(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(buft, size);
    last_base = buffer ? (uint64_t) ggml_backend_buffer_get_base(buffer) : 0;
    return buffer;
}

#define ggml_backend_buft_alloc_buffer watched_alloc_buffer
#include "ggml-rpc.cpp" // from the patched source
#undef ggml_backend_buft_alloc_buffer
