#include "shapes.h"

#include <cmath>

namespace mesh {

void check_mul_mat(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    REQUIRE(is_float(a) || ggml_is_quantized(a->type));
    REQUIRE(is_float(b) && is_f32(t));
    REQUIRE(is_row(a) && is_row(b) && is_new(t));
    REQUIRE(a->ne[0] == b->ne[0]);
    REQUIRE(b->ne[2] % a->ne[2] == 0 && b->ne[3] % a->ne[3] == 0);
    REQUIRE(has_shape(t, a->ne[1], b->ne[1], b->ne[2], b->ne[3]));
    if (param_i32(t, 1) == GGML_HINT_SRC0_IS_HADAMARD) {
        REQUIRE(a->ne[1] == a->ne[0] && (a->ne[0] & (a->ne[0] - 1)) == 0);
        REQUIRE(is_f32(a) && b->type != GGML_TYPE_BF16);
    }
}

void check_mul_mat_id(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    const ggml_tensor * ids = t->src[2];
    REQUIRE(is_float(a) || ggml_is_quantized(a->type));
    REQUIRE(is_f32(b) && is_f32(t) && ids->type == GGML_TYPE_I32);
    REQUIRE(is_row(a) && is_row(b) && is_row(ids) && is_new(t));
    REQUIRE(a->ne[0] == b->ne[0]);
    REQUIRE(a->ne[3] == 1 && b->ne[3] == 1 && ids->ne[2] == 1 && ids->ne[3] == 1);
    REQUIRE(ids->ne[1] == b->ne[2] && ids->ne[0] % b->ne[1] == 0);
    REQUIRE(has_shape(t, a->ne[1], ids->ne[0], b->ne[2], 1));
    // the CPU counts a line of its cache for each expert, in bytes as int; backends keep a row for each expert and id
    constexpr int64_t MOST_EXPERTS = 1 << 16;
    constexpr int64_t MOST_ROWS = 1 << 25; // 512 experts, of which 8 are used by each of 2048 tokens, take a quarter
    REQUIRE(a->ne[2] <= MOST_EXPERTS);
    REQUIRE(a->ne[2] <= MOST_ROWS / (ids->ne[0] * ids->ne[1]));
}

void check_copy(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(ggml_nelements(a) == ggml_nelements(t));
    if (a->type == t->type) {
        // what has no gaps is copied as one row, whose blocks are counted as int
        REQUIRE(!(is_flat(a) && is_flat(t)) || ggml_nelements(t) / ggml_blck_size(t->type) <= MAX_COUNT);
        // blocks are only copied as parts of rows, or all at once
        REQUIRE(!ggml_is_quantized(t->type) || ggml_are_same_shape(a, t) || (is_flat(a) && is_flat(t)));
        return;
    }
    REQUIRE(t->op == GGML_OP_CPY);
    if (ggml_is_quantized(a->type)) {
        REQUIRE(is_f32(t) && is_row(t));
        REQUIRE(t->ne[0] % ggml_blck_size(a->type) == 0 || is_flat(t));
    } else if (ggml_is_quantized(t->type)) {
        REQUIRE(is_float(a) && is_row(a) && is_flat(t));
        REQUIRE(a->ne[0] % ggml_blck_size(t->type) == 0 && a->ne[0] <= t->ne[0]);
    } else {
        REQUIRE((is_float(a) && is_float(t)) || (is_f32(a) && t->type == GGML_TYPE_I32) ||
                (a->type == GGML_TYPE_I32 && is_f32(t)));
    }
}

void check_cpy(const ggml_tensor * t) {
    // the destination is also there as a source; ggml_cast() has the node itself there
    const ggml_tensor * b = t->src[1];
    REQUIRE(b->type == t->type && ggml_are_same_shape(b, t) && ggml_are_same_stride(b, t) && b->data == t->data);
    check_copy(t);
}

void check_get_rows(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    REQUIRE(is_float(a) || a->type == GGML_TYPE_I32 || ggml_is_quantized(a->type));
    REQUIRE(b->type == GGML_TYPE_I32);
    REQUIRE(t->type == (a->type == GGML_TYPE_I32 ? GGML_TYPE_I32 : GGML_TYPE_F32));
    REQUIRE(a->ne[2] == b->ne[1] && a->ne[3] == b->ne[2] && b->ne[3] == 1);
    REQUIRE(is_row(a) && is_new(t));
    REQUIRE(has_shape(t, a->ne[0], b->ne[0], b->ne[1], b->ne[2]));
}

void check_set_rows(const ggml_tensor * t) {
    const ggml_tensor * b = t->src[0];
    const ggml_tensor * c = t->src[1];
    REQUIRE(is_float(t) || ggml_is_quantized(t->type));
    // what converts half floats has space for one thread, and every thread writes to it (ggml_graph_plan)
    REQUIRE(b->type == GGML_TYPE_F32 || (b->type == GGML_TYPE_F16 && t->type == GGML_TYPE_F16));
    REQUIRE(c->type == GGML_TYPE_I64 || c->type == GGML_TYPE_I32);
    REQUIRE(t->ne[0] == b->ne[0] && t->ne[2] == b->ne[2] && t->ne[3] == b->ne[3]);
    REQUIRE(b->ne[1] == c->ne[0] && b->ne[2] % c->ne[1] == 0 && b->ne[3] % c->ne[2] == 0 && c->ne[3] == 1);
    REQUIRE(is_row(t) && is_row(b));
}

void check_set(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    REQUIRE(is_f32(t) || t->type == GGML_TYPE_I32);
    REQUIRE(a->type == t->type && b->type == t->type);
    REQUIRE(ggml_are_same_shape(a, t) && is_flat(a) && is_flat(t) && is_row(b));
    // where b is put: nb[1] to nb[3], and the offset
    uint64_t end = ggml_row_size(b->type, b->ne[0]);
    for (int i = 0; i < 4; i++) {
        REQUIRE(param_i32(t, i) >= 0 && param_i32(t, i) % ggml_type_size(t->type) == 0);
        end += (uint64_t) param_i32(t, i) * (i < 3 ? b->ne[i + 1] - 1 : 1);
    }
    REQUIRE(end <= ggml_nbytes(t));
}

void check_solve_tri(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    REQUIRE(is_f32(a) && is_f32(b) && is_f32(t));
    REQUIRE(is_new(a) && is_new(b) && is_new(t));
    REQUIRE(a->ne[0] == a->ne[1] && a->ne[1] == b->ne[1] && a->ne[2] == b->ne[2] && a->ne[3] == b->ne[3]);
    REQUIRE(ggml_are_same_shape(b, t));
}

void check_im2col(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    const bool is_2d = param_i32(t, 6) == 1;
    REQUIRE(b->type == GGML_TYPE_F32 || (b->type == GGML_TYPE_F16 && t->type == GGML_TYPE_F16));
    REQUIRE(t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16);
    REQUIRE(is_new(t) && is_new(b) && b->nb[3] <= INT32_MAX);
    int64_t out[2]; // width and height
    for (int i = 0; i < 2; i++) {
        const int64_t stride = param_i32(t, i);
        const int64_t pad = param_i32(t, 2 + i);
        const int64_t dilation = param_i32(t, 4 + i);
        if (i == 1 && !is_2d) {
            out[1] = b->ne[2];
            break;
        }
        REQUIRE(stride > 0 && dilation > 0 && pad >= 0);
        out[i] = (b->ne[i] + 2 * pad - dilation * (a->ne[i] - 1) - 1) / stride + 1;
    }
    REQUIRE(is_2d ? a->ne[2] == b->ne[2] : (a->ne[1] == b->ne[1] && b->ne[3] == 1));
    REQUIRE(has_shape(t, a->ne[0] * a->ne[1] * (is_2d ? a->ne[2] : 1), out[0], out[1], is_2d ? b->ne[3] : 1));
}

void check_pool_2d(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE((a->type == GGML_TYPE_F32 || a->type == GGML_TYPE_F16) && is_f32(t));
    REQUIRE(is_new(a) && is_new(t));
    REQUIRE(param_i32(t, 0) == GGML_OP_POOL_MAX || param_i32(t, 0) == GGML_OP_POOL_AVG);
    for (int i = 0; i < 2; i++) {
        const int32_t kernel = param_i32(t, 1 + i);
        const int32_t stride = param_i32(t, 3 + i);
        const int32_t pad = param_i32(t, 5 + i);
        REQUIRE(kernel > 0 && kernel <= 4096 && stride > 0 && stride <= 4096 && pad >= 0 && pad <= 4096);
        REQUIRE(t->ne[i] <= (a->ne[i] + 2 * pad) / stride + 1);
    }
    REQUIRE(t->ne[2] == a->ne[2] && t->ne[3] == a->ne[3]);
}

} // namespace mesh
