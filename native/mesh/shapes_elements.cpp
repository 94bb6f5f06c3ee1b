#include "shapes.h"

#include <cmath>

namespace mesh {

// dst = f(src0), element by element, or row by row
void check_map(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(ggml_are_same_shape(a, t));
    REQUIRE(a->type == t->type);
    REQUIRE(is_row(a) && is_result(t, a));
}

static void check_rows(const ggml_tensor * t, float eps, bool anywhere) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_f32(a) && is_f32(t) && ggml_are_same_shape(a, t));
    REQUIRE(eps >= 0.0f);
    // some take the elements of a row from anywhere
    REQUIRE(anywhere || is_row(a));
    REQUIRE(is_result(t, a));
}

void check_norm(const ggml_tensor * t) {
    check_rows(t, param_f32(t, 0), true);
}

void check_rms_norm(const ggml_tensor * t) {
    check_rows(t, param_f32(t, 0), false);
}

void check_cumsum(const ggml_tensor * t) {
    check_rows(t, 0.0f, false);
}

void check_group_norm(const ggml_tensor * t) {
    REQUIRE(param_i32(t, 0) > 0 && param_i32(t, 0) <= t->ne[2]);
    REQUIRE(t->ne[2] <= MAX_COUNT / 2); // channels and groups are added as int
    check_rows(t, param_f32(t, 1), false);
}

void check_unary(const ggml_tensor * t) {
    REQUIRE(is_float(t));
    if (is_kind(t, "XIELU")) {
        REQUIRE(is_even(t->src[0]) && is_even(t));
    }
    check_map(t);
}

void check_scale(const ggml_tensor * t) {
    REQUIRE(is_float(t) && t->type != GGML_TYPE_F16);
    REQUIRE(is_even(t->src[0]) && is_even(t) && is_flat(t->src[0]) && is_flat(t));
    check_map(t);
}

void check_clamp(const ggml_tensor * t) {
    REQUIRE(is_float(t) && t->type != GGML_TYPE_BF16);
    REQUIRE(is_even(t->src[0]) && is_even(t));
    check_map(t);
}

void check_binary(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    REQUIRE(is_float(a) && is_float(b) && is_float(t));
    REQUIRE(b->type == a->type || is_f32(b));
    REQUIRE(t->type == a->type || (is_f32(t) && is_f32(b)));
    REQUIRE(ggml_can_repeat(b, a));
    REQUIRE(ggml_are_same_shape(a, t));
    REQUIRE(is_row(a) && is_result(t, a));
}

void check_glu(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    REQUIRE(is_f32(a) || (a->type == GGML_TYPE_F16 && !is_kind(t, "SWIGLU_OAI")));
    REQUIRE(a->type == t->type && is_even(a) && is_new(t));
    if (b != nullptr) {
        REQUIRE(b->type == a->type && ggml_are_same_shape(a, b) && is_even(b));
    } else {
        REQUIRE(a->ne[0] % 2 == 0);
    }
    REQUIRE(has_shape(t, b ? a->ne[0] : a->ne[0] / 2, a->ne[1], a->ne[2], a->ne[3]));
}

void check_add_id(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    const ggml_tensor * ids = t->src[2];
    REQUIRE(is_f32(b) && is_row(b) && ids->type == GGML_TYPE_I32);
    REQUIRE(b->ne[0] == a->ne[0]);
    REQUIRE(ids->ne[0] == a->ne[1] && ids->ne[1] == a->ne[2]);
    REQUIRE(is_f32(t));
    check_map(t);
}

void check_sum(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_row(a) && is_new(t));
    REQUIRE(is_float(a) && t->type == a->type && ggml_is_scalar(t));
}

void check_argmax(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_row(a) && is_new(t));
    REQUIRE(is_f32(a) && t->type == GGML_TYPE_I32 && ggml_is_matrix(a));
    REQUIRE(has_shape(t, a->ne[1], 1, 1, 1));
}

void check_sum_rows(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_row(a) && is_new(t));
    REQUIRE(is_f32(a) && is_f32(t));
    REQUIRE(has_shape(t, 1, a->ne[1], a->ne[2], a->ne[3]));
}

static void check_order(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_f32(a) && t->type == GGML_TYPE_I32);
    REQUIRE(is_even(a) && is_new(t));
    REQUIRE(has_shape(t, t->ne[0], a->ne[1], a->ne[2], a->ne[3]));
}

void check_argsort(const ggml_tensor * t) {
    check_order(t);
    REQUIRE(t->ne[0] == t->src[0]->ne[0]);
    REQUIRE(param_i32(t, 0) == GGML_SORT_ORDER_ASC || param_i32(t, 0) == GGML_SORT_ORDER_DESC);
}

void check_top_k(const ggml_tensor * t) {
    check_order(t);
    REQUIRE(t->ne[0] <= t->src[0]->ne[0]);
}

void check_repeat(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_float(a) || a->type == GGML_TYPE_I32 || a->type == GGML_TYPE_I16);
    REQUIRE(a->type == t->type);
    REQUIRE(ggml_can_repeat(a, t));
    REQUIRE(is_row(a) && is_new(t));
}

void check_concat(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * b = t->src[1];
    const int32_t dim = param_i32(t, 0);
    REQUIRE(dim >= 0 && dim < GGML_MAX_DIMS);
    REQUIRE(a->type == b->type && a->type == t->type);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        REQUIRE(i == dim ? t->ne[i] == a->ne[i] + b->ne[i] : (t->ne[i] == a->ne[i] && t->ne[i] == b->ne[i]));
    }
    REQUIRE(is_new(t));
    REQUIRE((is_row(a) && is_row(b)) || (!ggml_is_quantized(a->type) && a->type != GGML_TYPE_I64));
}

void check_diag(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_f32(a) && is_f32(t) && is_row(a) && is_new(t) && a->ne[1] == 1);
    REQUIRE(has_shape(t, a->ne[0], a->ne[0], a->ne[2], a->ne[3]));
}

void check_diag_mask(const ggml_tensor * t) {
    REQUIRE(is_f32(t->src[0]) && is_flat(t->src[0]) && is_new(t));
    REQUIRE(param_i32(t, 0) >= 0 && param_i32(t, 0) < (1 << 30));
    check_map(t);
}

void check_tri(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    REQUIRE(is_f32(a) && is_flat(a) && a->ne[0] == a->ne[1]);
    REQUIRE(param_i32(t, 0) >= 0 && param_i32(t, 0) <= 3); // which triangle
    check_map(t);
}

void check_fill(const ggml_tensor * t) {
    REQUIRE(is_f32(t) || t->type == GGML_TYPE_F16);
    check_map(t);
}

void check_pad(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const bool circular = param_i32(t, 8) != 0;
    REQUIRE(is_f32(a) && is_f32(t) && is_new(t));
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        const int64_t left = param_i32(t, 2 * i);
        const int64_t right = param_i32(t, 2 * i + 1);
        REQUIRE(left >= 0 && right >= 0 && t->ne[i] == left + a->ne[i] + right);
        REQUIRE(!circular || (left <= a->ne[i] && right <= a->ne[i]));
    }
}

void check_arange(const ggml_tensor * t) {
    const float start = param_f32(t, 0);
    const float stop = param_f32(t, 1);
    const float step = param_f32(t, 2);
    REQUIRE(is_f32(t) && is_new(t));
    REQUIRE(stop > start && step > 0.0f && (stop - start) / step < 1e9f);
    REQUIRE(ggml_nelements(t) == (int64_t) ceilf((stop - start) / step));
}

} // namespace mesh
