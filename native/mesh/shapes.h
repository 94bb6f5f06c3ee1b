// What is asked of the nodes of a graph: predicates, and one check for each operation. A check takes for granted
// that the sources are there (operations.cpp has counted them) and throws bad_message.
#pragma once

#include "layout.h"

#include "ggml-impl.h"

#include <cstring>

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            throw bad_message(std::string(ggml_op_name(t->op)) + " refused, wanted: " #condition);                     \
        }                                                                                                              \
    } while (0)

namespace mesh {

inline bool is_float(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
}

inline bool is_f32(const ggml_tensor * t) {
    return t->type == GGML_TYPE_F32;
}

inline bool has_shape(const ggml_tensor * t, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == ne3;
}

// The elements of a row follow each other. Unlike ggml_is_contiguous_rows() also for a row of one element: kernels
// assert it.
inline bool is_row(const ggml_tensor * t) {
    return t->nb[0] == ggml_type_size(t->type);
}

// As above, and all rows are at the same distance, through all dimensions
inline bool is_even(const ggml_tensor * t) {
    return is_row(t) && (t->ne[2] == 1 || t->nb[2] == t->nb[1] * static_cast<uint64_t>(t->ne[1])) &&
           (t->ne[3] == 1 || t->nb[3] == t->nb[1] * static_cast<uint64_t>(t->ne[1] * t->ne[2]));
}

// The strides that a new tensor has, in each dimension
inline bool is_new(const ggml_tensor * t) {
    return is_row(t) && t->nb[1] == ggml_row_size(t->type, t->ne[0]) &&
           t->nb[2] == t->nb[1] * static_cast<uint64_t>(t->ne[1]) &&
           t->nb[3] == t->nb[2] * static_cast<uint64_t>(t->ne[2]);
}

// A new tensor, or one that lies as the source does, for operations that may work in place
inline bool is_result(const ggml_tensor * t, const ggml_tensor * source) {
    return is_new(t) || (is_row(t) && ggml_are_same_stride(t, source));
}

// No gaps. Kernels then take all of it as one row.
inline bool is_flat(const ggml_tensor * t) {
    return is_row(t) && ggml_is_contiguous(t);
}

inline float param_f32(const ggml_tensor * t, int i) {
    return ggml_get_op_params_f32(t, static_cast<uint32_t>(i));
}

inline int32_t param_i32(const ggml_tensor * t, int i) {
    return ggml_get_op_params_i32(t, static_cast<uint32_t>(i));
}

// Whether the first parameter of a UNARY or GLU is this one; by name, as a release may not have it
inline bool is_kind(const ggml_tensor * t, const char * name) {
    const char * kind = t->op == GGML_OP_UNARY ? ggml_unary_op_name(static_cast<ggml_unary_op>(param_i32(t, 0)))
                        : t->op == GGML_OP_GLU ? ggml_glu_op_name(static_cast<ggml_glu_op>(param_i32(t, 0)))
                                               : "";
    return std::strcmp(kind, name) == 0;
}

// Each source element by element to the result
void check_map(const ggml_tensor * t);

// shapes_elements.cpp
void check_add_id(const ggml_tensor * t);
void check_arange(const ggml_tensor * t);
void check_argmax(const ggml_tensor * t);
void check_argsort(const ggml_tensor * t);
void check_binary(const ggml_tensor * t);
void check_clamp(const ggml_tensor * t);
void check_concat(const ggml_tensor * t);
void check_cumsum(const ggml_tensor * t);
void check_diag(const ggml_tensor * t);
void check_diag_mask(const ggml_tensor * t);
void check_fill(const ggml_tensor * t);
void check_glu(const ggml_tensor * t);
void check_group_norm(const ggml_tensor * t);
void check_norm(const ggml_tensor * t);
void check_pad(const ggml_tensor * t);
void check_repeat(const ggml_tensor * t);
void check_rms_norm(const ggml_tensor * t);
void check_scale(const ggml_tensor * t);
void check_sum(const ggml_tensor * t);
void check_sum_rows(const ggml_tensor * t);
void check_top_k(const ggml_tensor * t);
void check_tri(const ggml_tensor * t);
void check_unary(const ggml_tensor * t);

// shapes_matrices.cpp
void check_copy(const ggml_tensor * t);
void check_cpy(const ggml_tensor * t);
void check_get_rows(const ggml_tensor * t);
void check_im2col(const ggml_tensor * t);
void check_mul_mat(const ggml_tensor * t);
void check_mul_mat_id(const ggml_tensor * t);
void check_pool_2d(const ggml_tensor * t);
void check_set(const ggml_tensor * t);
void check_set_rows(const ggml_tensor * t);
void check_solve_tri(const ggml_tensor * t);

// shapes_attention.cpp
void check_flash_attn(const ggml_tensor * t);
void check_lightning_indexer(const ggml_tensor * t);
void check_rope(const ggml_tensor * t);
void check_soft_max(const ggml_tensor * t);

// shapes_recurrent.cpp
void check_gated_delta_net(const ggml_tensor * t);
void check_gated_linear(const ggml_tensor * t);
void check_hyper_comb(const ggml_tensor * t);
void check_hyper_post(const ggml_tensor * t);
void check_hyper_pre(const ggml_tensor * t);
void check_ssm_conv(const ggml_tensor * t);
void check_ssm_scan(const ggml_tensor * t);
void check_wkv6(const ggml_tensor * t);
void check_wkv7(const ggml_tensor * t);

} // namespace mesh
