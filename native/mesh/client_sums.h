// Sums over several workers, as ggml's Meta device asks for them (--split-mode tensor): its ggml_backend_comm_init,
// ggml_backend_comm_free and ggml_backend_comm_allreduce_tensor.
#pragma once

#include "ggml-backend.h"

#include <string>

namespace mesh {

// nullptr: not all are devices of different workers that have connections with each other, or GGML_MESH_SUMS is `off`;
// then ggml copies and adds by itself
void * open_sums(ggml_backend_t * backends, size_t count);
void close_sums(void * sums);
// One tensor of each backend, in their order. Waits for nothing. false: ggml has to do it, or a worker is lost
bool compute_sum(void * sums, ggml_tensor ** tensors);

// How values cross: f32, f16 or q8; off. Throws std::runtime_error for anything else
void choose_sums(const std::string & form);

} // namespace mesh
