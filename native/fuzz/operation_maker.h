// One valid operation, and what all kinds of them need: tensors of odd shapes, types, and indices.
#pragma once

#include "operations.h"

#include <cstdint>
#include <vector>

struct operation_maker {
    ggml_context * ctx;
    dice & d;
    ggml_tensor * before;
    std::vector<index_tensor> & indices;

    ggml_tensor * leaf(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1, int64_t ne3 = 1) {
        return ggml_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
    }
    // small, often 1, which is where strides stop to matter
    int64_t n() { return d.one_in(3) ? 1 : d.within(1, 5); }
    int64_t wide() { return d.one_in(30) ? d.within(41, 700) : d.one_in(4) ? 32 * d.within(1, 3) : d.within(1, 40); }
    // what came before, if that is of this type: chains of nodes
    ggml_tensor * any(ggml_type type = GGML_TYPE_F32) {
        if (before != nullptr && before->type == type && ggml_is_contiguous(before) && d.one_in(2)) {
            return before;
        }
        ggml_tensor * t = leaf(type, wide(), n(), n(), n());
        return t;
    }
    // rows with gaps between them, or in another order
    ggml_tensor * bent(ggml_tensor * t) {
        switch (d.below(4)) {
        case 0:
            return ggml_view_4d(
                ctx, t, d.within(1, t->ne[0]), t->ne[1], t->ne[2], t->ne[3], t->nb[1], t->nb[2], t->nb[3], 0);
        case 1:
            return ggml_permute(ctx, t, 0, 2, 1, 3);
        default:
            return t;
        }
    }
    ggml_type quantized() {
        return d.of({ GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K,
            GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS,
            GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS, GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ1_S, GGML_TYPE_IQ3_S, GGML_TYPE_IQ2_S,
            GGML_TYPE_IQ1_M, GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0, GGML_TYPE_MXFP4, GGML_TYPE_NVFP4 });
    }
    ggml_type floating() { return d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }); }
    ggml_type weight() { return d.one_in(2) ? quantized() : floating(); }
    // what a product with such a weight takes beside it
    ggml_type right(ggml_type weight) {
        return d.one_in(4) && (weight == GGML_TYPE_F16 || weight == GGML_TYPE_BF16) ? weight : GGML_TYPE_F32;
    }
    int64_t row(ggml_type type) { return ggml_blck_size(type) > 1 ? ggml_blck_size(type) * d.within(1, 2) : wide(); }
    ggml_tensor * ids(ggml_type type, int64_t limit, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        ggml_tensor * t = leaf(type, ne0, ne1, ne2);
        indices.push_back({ t, limit });
        return t;
    }

    // operations.cpp
    ggml_tensor * binary();
    ggml_tensor * mul_mat();
    ggml_tensor * add_id();
    ggml_tensor * get_rows();
    ggml_tensor * set_rows();
    ggml_tensor * copy();
    ggml_tensor * one_to_one();
    ggml_tensor * reduce();
    ggml_tensor * shape();
    ggml_tensor * set();
    ggml_tensor * unary();

    // operations_layers.cpp
    ggml_tensor * mul_mat_id();
    ggml_tensor * experts();
    ggml_tensor * rope();
    ggml_tensor * soft_max();
    ggml_tensor * flash_attn();
    ggml_tensor * glu();
    ggml_tensor * norm();
    ggml_tensor * convolution();
    ggml_tensor * recurrent();
    ggml_tensor * rare();
};
