#include "shapes.h"

#include <cmath>

namespace mesh {

void check_rope(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * pos = t->src[1];
    const ggml_tensor * ff = t->src[2];
    const int64_t n_dims = param_i32(t, 1);
    const int32_t mode = param_i32(t, 2);
    const int64_t n_offs = param_i32(t, 15);
    const bool vision = mode == GGML_ROPE_TYPE_VISION;
    const bool multi = vision || mode == GGML_ROPE_TYPE_MROPE || mode == GGML_ROPE_TYPE_IMROPE;
    REQUIRE(multi || mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX);
    REQUIRE(a->type == GGML_TYPE_F32 || a->type == GGML_TYPE_F16);
    REQUIRE(pos->type == GGML_TYPE_I32 && is_row(pos) && ggml_is_vector(pos));
    REQUIRE(pos->ne[0] == a->ne[2] * (multi ? 4 : 1));
    REQUIRE(a->ne[0] % 2 == 0 && n_dims > 0 && n_dims % 2 == 0);
    REQUIRE(n_offs >= 0 && n_offs % 2 == 0 && n_offs + n_dims <= a->ne[0]);
    REQUIRE(!vision || (n_dims == a->ne[0] / 2 && n_offs == 0));
    if (ff != nullptr) {
        REQUIRE(is_f32(ff) && is_row(ff) && ff->ne[0] >= (multi ? a->ne[0] : n_dims) / 2);
    }
    if (multi) {
        int64_t sum = 0;
        for (int i = 0; i < GGML_MROPE_SECTIONS; i++) {
            REQUIRE(param_i32(t, 11 + i) >= 0);
            sum += param_i32(t, 11 + i);
        }
        REQUIRE(sum > 0 && sum <= a->ne[0]);
    }
    check_map(t);
}

void check_soft_max(const ggml_tensor * t) {
    const ggml_tensor * a = t->src[0];
    const ggml_tensor * mask = t->src[1];
    const ggml_tensor * sinks = t->src[2];
    REQUIRE(is_f32(a) && is_flat(a) && is_flat(t));
    if (mask != nullptr) {
        REQUIRE(mask->type == GGML_TYPE_F16 || mask->type == GGML_TYPE_F32);
        REQUIRE(is_flat(mask) && mask->ne[0] == a->ne[0] && mask->ne[1] >= a->ne[1]);
        REQUIRE(a->ne[2] % mask->ne[2] == 0 && a->ne[3] % mask->ne[3] == 0);
    }
    REQUIRE(mask != nullptr || !(param_f32(t, 1) > 0.0f));
    if (sinks != nullptr) {
        REQUIRE(is_f32(sinks) && is_row(sinks) && sinks->ne[0] == a->ne[2]);
    }
    check_map(t);
}

// What attention can have in its cache
static bool is_kv(const ggml_tensor * t) {
    switch (t->type) {
    case GGML_TYPE_Q4_0:
    case GGML_TYPE_Q4_1:
    case GGML_TYPE_Q5_0:
    case GGML_TYPE_Q5_1:
    case GGML_TYPE_Q8_0:
    case GGML_TYPE_IQ4_NL:
        return true;
    default:
        return is_float(t);
    }
}

void check_flash_attn(const ggml_tensor * t) {
    const ggml_tensor * q = t->src[0];
    const ggml_tensor * k = t->src[1];
    const ggml_tensor * v = t->src[2];
    const ggml_tensor * mask = t->src[3];
    const ggml_tensor * sinks = t->src[4];
    REQUIRE(is_f32(q) && is_kv(k) && is_kv(v) && is_f32(t));
    REQUIRE(is_row(q) && is_row(k) && is_row(v) && is_new(t));
    REQUIRE(k->ne[0] == q->ne[0] && v->ne[1] == k->ne[1]);
    REQUIRE(q->ne[2] % k->ne[2] == 0 && q->ne[2] % v->ne[2] == 0);
    REQUIRE(q->ne[3] == k->ne[3] && q->ne[3] == v->ne[3]);
    REQUIRE(has_shape(t, v->ne[0], q->ne[2], q->ne[1], q->ne[3]));
    REQUIRE(param_i32(t, 3) == GGML_PREC_DEFAULT || param_i32(t, 3) == GGML_PREC_F32);
    REQUIRE(param_i32(t, 4) >= 0);
    if (mask != nullptr) {
        REQUIRE(mask->type == GGML_TYPE_F16 && is_flat(mask));
        REQUIRE(mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1]);
        REQUIRE(q->ne[2] % mask->ne[2] == 0 && q->ne[3] % mask->ne[3] == 0);
    }
    REQUIRE(mask != nullptr || !(param_f32(t, 1) > 0.0f));
    if (sinks != nullptr) {
        REQUIRE(is_f32(sinks) && is_row(sinks) && sinks->ne[0] == q->ne[2]);
    }
}

void check_lightning_indexer(const ggml_tensor * t) {
    const ggml_tensor * q = t->src[0];
    const ggml_tensor * k = t->src[1];
    const ggml_tensor * w = t->src[2];
    const ggml_tensor * mask = t->src[3];
    REQUIRE(is_f32(q) && is_kv(k) && is_f32(w) && mask->type == GGML_TYPE_F16 && is_f32(t));
    REQUIRE(is_row(q) && is_row(k) && is_row(w) && is_row(mask) && is_new(t));
    REQUIRE(q->ne[0] == k->ne[0] && k->ne[1] == 1 && k->ne[3] == q->ne[3]);
    REQUIRE(has_shape(w, q->ne[1], q->ne[2], 1, q->ne[3]));
    REQUIRE(has_shape(mask, k->ne[2], q->ne[2], 1, mask->ne[3]) && q->ne[3] % mask->ne[3] == 0);
    REQUIRE(has_shape(t, k->ne[2], q->ne[2], 1, q->ne[3]));
}

} // namespace mesh
