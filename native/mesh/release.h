// The release of ggml that this is compiled against, which head and worker must have alike, and what releases differ
// in, without the preprocessor. Operations, types and kinds are told by name (names.h).
#pragma once

#include "ggml.h"

#include <cstddef>
#include <string>

namespace mesh {

inline std::string ggml_release() {
    return ggml_version();
}

// The capability `mmap_support`, which came after 0.15
template <class Caps> auto allow_mapping(Caps & caps, int) -> decltype(caps.mmap_support, void()) {
    caps.mmap_support = true;
}
template <class Caps> void allow_mapping(Caps &, long) {}

// What a matrix product or attention sums up in; the function for both came after 0.20, and makes those before it old
template <class Tensor>
auto sum_in_f32(Tensor * tensor, int) -> decltype(ggml_prec_set_acc(tensor, GGML_PREC_F32), void()) {
    ggml_prec_set_acc(tensor, GGML_PREC_F32);
}
template <class Tensor> void sum_in_f32(Tensor * tensor, long) {
    tensor->op == GGML_OP_MUL_MAT ? ggml_mul_mat_set_prec(tensor, GGML_PREC_F32)
                                  : ggml_flash_attn_ext_set_prec(tensor, GGML_PREC_F32);
}

template <class... Parameters> constexpr size_t count_parameters(ggml_tensor * (*) (Parameters...)) {
    return sizeof...(Parameters);
}

// How many states SSM_SCAN gives is its first parameter, which came after 0.15; before, it is one
inline constexpr bool SCAN_COUNTS_STATES = count_parameters(ggml_ssm_scan) == 9;

// 25 for "0.25.3"; throws std::runtime_error for what is no version
int minor_of(const std::string & version);

// The checks of shapes.h are those of the pin's kernels. What older ones do not take is refused here: some abort, and
// one writes behind its result. Throws bad_message.
void check_older_kernels(const ggml_tensor * t, int minor);

} // namespace mesh
