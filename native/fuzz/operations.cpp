#include "operations.h"

#include <algorithm>

namespace {

struct maker {
    ggml_context *              ctx;
    dice &                      d;
    ggml_tensor *               before;
    std::vector<index_tensor> & indices;

    ggml_tensor * leaf(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1, int64_t ne3 = 1) {
        return ggml_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3);
    }
    // small, often 1, which is where strides stop to matter
    int64_t n() { return d.one_in(3) ? 1 : d.within(1, 5); }
    int64_t wide() { return d.one_in(4) ? 32*d.within(1, 3) : d.within(1, 40); }
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
            case 0: return ggml_view_4d(ctx, t, d.within(1, t->ne[0]), t->ne[1], t->ne[2], t->ne[3], t->nb[1], t->nb[2], t->nb[3], 0);
            case 1: return ggml_permute(ctx, t, 0, 2, 1, 3);
            default: return t;
        }
    }
    ggml_type quantized() {
        return d.of({ GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_Q8_0, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K,
            GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K, GGML_TYPE_IQ4_NL, GGML_TYPE_IQ4_XS, GGML_TYPE_IQ2_XXS, GGML_TYPE_IQ2_XS,
            GGML_TYPE_IQ3_XXS, GGML_TYPE_IQ1_S, GGML_TYPE_IQ3_S, GGML_TYPE_IQ2_S, GGML_TYPE_IQ1_M, GGML_TYPE_TQ1_0, GGML_TYPE_TQ2_0,
            GGML_TYPE_MXFP4, GGML_TYPE_NVFP4 });
    }
    ggml_type floating() { return d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }); }
    ggml_type weight() { return d.one_in(2) ? quantized() : d.of({ GGML_TYPE_F32, GGML_TYPE_F16 }); }
    int64_t row(ggml_type type) { return ggml_blck_size(type) > 1 ? ggml_blck_size(type)*d.within(1, 2) : wide(); }
    ggml_tensor * ids(ggml_type type, int64_t limit, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        ggml_tensor * t = leaf(type, ne0, ne1, ne2);
        indices.push_back({ t, limit });
        return t;
    }

    ggml_tensor * binary() {
        ggml_tensor * a = bent(any(d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32));
        ggml_tensor * b = leaf(GGML_TYPE_F32, d.one_in(3) ? 1 : a->ne[0], d.one_in(2) ? 1 : a->ne[1], d.one_in(2) ? 1 : a->ne[2], a->ne[3]);
        switch (d.below(4)) {
            case 0:  return ggml_add(ctx, a, b);
            case 1:  return ggml_sub(ctx, a, b);
            case 2:  return ggml_div(ctx, a, b);
            default: return ggml_mul(ctx, a, b);
        }
    }
    ggml_tensor * mul_mat() {
        const ggml_type type = weight();
        ggml_tensor * a = leaf(type, row(type), d.within(1, 40), n(), n());
        ggml_tensor * b = leaf(GGML_TYPE_F32, a->ne[0], d.within(1, 20), a->ne[2]*n(), a->ne[3]*d.within(1, 2));
        return ggml_mul_mat(ctx, a, b);
    }
    ggml_tensor * mul_mat_id() {
        const ggml_type type = weight();
        const int64_t experts = d.within(1, 8), used = d.within(1, 4), tokens = d.within(1, 6);
        ggml_tensor * a = leaf(type, row(type), d.within(1, 20), experts);
        ggml_tensor * b = leaf(GGML_TYPE_F32, a->ne[0], d.one_in(2) ? 1 : used, tokens);
        return ggml_mul_mat_id(ctx, a, b, ids(GGML_TYPE_I32, experts, used, tokens));
    }
    ggml_tensor * experts() { // the way a mixture of experts really goes: ids are computed, not sent
        const int64_t n_experts = d.within(4, 40), tokens = d.within(1, 6);
        ggml_tensor * top = ggml_argsort_top_k(ctx, leaf(GGML_TYPE_F32, n_experts, tokens), (int) d.within(1, 4));
        ggml_tensor * a = leaf(GGML_TYPE_Q4_0, 32, d.within(1, 20), n_experts);
        return ggml_mul_mat_id(ctx, a, leaf(GGML_TYPE_F32, 32, 1, tokens), top);
    }
    ggml_tensor * add_id() {
        ggml_tensor * a = leaf(GGML_TYPE_F32, wide(), n(), n());
        ggml_tensor * b = leaf(GGML_TYPE_F32, a->ne[0], d.within(1, 8));
        return ggml_add_id(ctx, a, b, ids(GGML_TYPE_I32, b->ne[1], a->ne[1], a->ne[2]));
    }
    ggml_tensor * get_rows() {
        const ggml_type type = d.one_in(5) ? GGML_TYPE_I32 : d.one_in(5) ? GGML_TYPE_BF16 : weight();
        ggml_tensor * a = leaf(type, row(type), d.within(1, 20), n(), n());
        return ggml_get_rows(ctx, a, ids(GGML_TYPE_I32, a->ne[1], d.within(1, 8), a->ne[2], a->ne[3]));
    }
    ggml_tensor * set_rows() {
        const ggml_type type = d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL });
        ggml_tensor * a = leaf(type, row(type), d.within(1, 20), n(), n());
        ggml_tensor * b = leaf(d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32, a->ne[0], d.within(1, 8), a->ne[2], a->ne[3]);
        return ggml_set_rows(ctx, a, b, ids(d.of({ GGML_TYPE_I64, GGML_TYPE_I32 }), a->ne[1], b->ne[1], 1, 1));
    }
    ggml_tensor * copy() {
        const ggml_type to = d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 });
        switch (d.below(6)) {
            case 0: return ggml_cast(ctx, any(floating()), d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }));
            case 1: { ggml_tensor * a = leaf(GGML_TYPE_F32, row(to), n(), n()); return ggml_cpy(ctx, a, leaf(to, a->ne[0], a->ne[1], a->ne[2])); }
            case 2: { ggml_tensor * a = leaf(GGML_TYPE_Q8_0, 64, n(), n()); return ggml_cast(ctx, a, GGML_TYPE_F32); }
            case 3: return ggml_cont(ctx, ggml_transpose(ctx, any()));
            case 4: return ggml_cast(ctx, d.one_in(2) ? any(GGML_TYPE_I32) : any(), d.of({ GGML_TYPE_F32, GGML_TYPE_F32, GGML_TYPE_F32 }));
            default: return ggml_cont(ctx, bent(any()));
        }
    }
    ggml_tensor * rope() {
        const int64_t n_dims = 2*d.within(1, 16), heads = n(), tokens = n();
        const int mode = d.of({ GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX, GGML_ROPE_TYPE_MROPE, GGML_ROPE_TYPE_IMROPE, GGML_ROPE_TYPE_VISION });
        const int64_t ne0 = mode == GGML_ROPE_TYPE_VISION ? 2*n_dims : n_dims + (d.one_in(3) ? 2*d.within(0, 8) : 0);
        ggml_tensor * a = leaf(d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32, ne0, heads, tokens, n());
        ggml_tensor * ff = d.one_in(3) ? leaf(GGML_TYPE_F32, mode & GGML_ROPE_TYPE_MROPE ? ne0/2 : n_dims/2) : nullptr;
        if (mode & GGML_ROPE_TYPE_MROPE) {
            int sections[GGML_MROPE_SECTIONS] = { 1, (int) d.below(2), 0, 0 };
            return ggml_rope_multi(ctx, a, leaf(GGML_TYPE_I32, 4*tokens), ff, (int) n_dims, sections, mode, 4096, 1e4f, 1, (float) d.below(2), 1, 32, 1);
        }
        return ggml_rope_ext(ctx, a, leaf(GGML_TYPE_I32, tokens), ff, (int) n_dims, mode, 4096, 1e4f, 1, (float) d.below(2), 1, 32, 1);
    }
    ggml_tensor * soft_max() {
        ggml_tensor * a    = leaf(GGML_TYPE_F32, wide(), n(), n(), n());
        ggml_tensor * mask = d.one_in(3) ? nullptr : leaf(d.of({ GGML_TYPE_F16, GGML_TYPE_F32 }), a->ne[0], a->ne[1] + n() - 1, 1, 1);
        ggml_tensor * t    = ggml_soft_max_ext(ctx, a, mask, 0.5f, mask && d.one_in(2) ? 8.0f : 0.0f);
        if (d.one_in(3)) {
            ggml_soft_max_add_sinks(t, leaf(GGML_TYPE_F32, a->ne[2]));
        }
        return t;
    }
    ggml_tensor * flash_attn() {
        const ggml_type type = d.of({ GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_BF16 });
        const int64_t D = type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 ? 32 : d.within(1, 40);
        const int64_t kv = d.one_in(4) ? d.within(512, 600) : d.within(1, 80), heads_kv = n(), heads = heads_kv*n(), tokens = d.one_in(2) ? 1 : d.within(1, 70), seqs = n();
        ggml_tensor * q    = leaf(GGML_TYPE_F32, D, tokens, heads, seqs);
        ggml_tensor * k    = leaf(type, D, kv, heads_kv, seqs);
        ggml_tensor * mask = d.one_in(3) ? nullptr : leaf(GGML_TYPE_F16, kv, tokens);
        ggml_tensor * t    = ggml_flash_attn_ext(ctx, q, k, leaf(type, D, kv, heads_kv, seqs), mask, 0.3f, mask && d.one_in(3) ? 8.0f : 0.0f, d.one_in(3) ? 30.0f : 0.0f);
        if (d.one_in(3)) {
            ggml_flash_attn_ext_add_sinks(t, leaf(GGML_TYPE_F32, heads));
        }
        return t;
    }
    ggml_tensor * glu() {
        const ggml_glu_op op = (ggml_glu_op) d.below(GGML_GLU_OP_COUNT);
        ggml_tensor * a = leaf(op != GGML_GLU_OP_SWIGLU_OAI && d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32, 2*wide(), n(), n());
        return d.one_in(2) ? ggml_glu(ctx, a, op, d.one_in(2)) : ggml_glu_split(ctx, a, leaf(a->type, a->ne[0], a->ne[1], a->ne[2]), op);
    }
    ggml_tensor * one_to_one() {
        ggml_tensor * a = any();
        switch (d.below(9)) {
            case 0:  return ggml_sqr(ctx, a);
            case 1:  return ggml_sqrt(ctx, a);
            case 2:  return ggml_log(ctx, a);
            case 3:  return ggml_sin(ctx, a);
            case 4:  return ggml_cos(ctx, a);
            case 5:  return ggml_scale_bias(ctx, a, 2.0f, d.one_in(2) ? 1.0f : 0.0f);
            case 6:  return ggml_clamp(ctx, a, -1.0f, 1.0f);
            case 7:  return ggml_xielu(ctx, a, 0.8f, 0.8f, 0.5f, -1e-6f);
            default: return ggml_scale_inplace(ctx, a, 0.5f);
        }
    }
    ggml_tensor * norm() {
        ggml_tensor * a = any();
        switch (d.below(6)) {
            case 0:  return ggml_norm(ctx, bent(a), 1e-5f);
            case 1:  return ggml_l2_norm(ctx, bent(a), 1e-5f);
            case 2:  return ggml_group_norm(ctx, a, (int) d.within(1, a->ne[2]), 1e-5f);
            case 3:  return ggml_mul(ctx, ggml_rms_norm(ctx, a, 1e-5f), leaf(GGML_TYPE_F32, a->ne[0])); // fused
            default: return ggml_rms_norm(ctx, bent(a), 1e-5f);
        }
    }
    ggml_tensor * reduce() {
        ggml_tensor * a = any();
        switch (d.below(7)) {
            case 0:  return ggml_sum(ctx, a);
            case 1:  return ggml_sum_rows(ctx, bent(a));
            case 2:  return ggml_mean(ctx, a);
            case 3:  return ggml_cumsum(ctx, a);
            case 4:  return ggml_argmax(ctx, ggml_reshape_2d(ctx, a, a->ne[0], ggml_nrows(a)));
            case 5:  return ggml_argsort(ctx, a, d.of({ GGML_SORT_ORDER_ASC, GGML_SORT_ORDER_DESC }));
            default: return ggml_top_k(ctx, a, (int) d.within(1, a->ne[0]));
        }
    }
    ggml_tensor * shape() {
        ggml_tensor * a = any();
        const int64_t s = d.within(1, 12);
        switch (d.below(9)) {
            case 0:  return ggml_repeat_4d(ctx, a, a->ne[0]*n(), a->ne[1]*n(), a->ne[2], a->ne[3]);
            case 1:  return ggml_concat(ctx, a, leaf(GGML_TYPE_F32, a->ne[0], a->ne[1], n(), a->ne[3]), 2);
            case 2:  return ggml_concat(ctx, leaf(GGML_TYPE_Q8_0, 64, 3, 2), leaf(GGML_TYPE_Q8_0, 32, 3, 2), 0);
            case 3:  return ggml_pad(ctx, a, (int) d.below(4), (int) d.below(4), 0, (int) d.below(2));
            case 4:  return ggml_tri(ctx, leaf(GGML_TYPE_F32, s, s, n()), (ggml_tri_type) d.below(4));
            case 5:  return ggml_diag(ctx, leaf(GGML_TYPE_F32, s, 1, n()));
            case 6:  return ggml_diag_mask_inf(ctx, a, (int) d.below(4));
            case 7:  return ggml_arange(ctx, 0, (float) d.within(1, 50), 1);
            default: return d.one_in(2) ? ggml_fill(ctx, a, 1.0f) : ggml_fill_inplace(ctx, a, 1.0f);
        }
    }
    ggml_tensor * set() {
        ggml_tensor * a = leaf(GGML_TYPE_F32, d.within(2, 20), d.within(2, 6));
        return d.one_in(2) ? ggml_set_2d(ctx, a, leaf(GGML_TYPE_F32, a->ne[0] - 1, a->ne[1] - 1), a->nb[1], 4)
                           : ggml_set_2d_inplace(ctx, a, leaf(GGML_TYPE_F32, a->ne[0] - 1, 1), a->nb[1], a->nb[1]);
    }
    ggml_tensor * convolution() {
        const int64_t channels = n(), kernel = d.within(1, 4);
        switch (d.below(3)) {
            case 0: return ggml_im2col(ctx, leaf(GGML_TYPE_F16, kernel, channels, 2), leaf(GGML_TYPE_F32, d.within(8, 20), channels, n()), 1, 0, (int) d.below(3), 0, 1, 0, false, d.of({ GGML_TYPE_F16, GGML_TYPE_F32 }));
            case 1: return ggml_im2col(ctx, leaf(GGML_TYPE_F16, kernel, kernel, channels, 2), leaf(GGML_TYPE_F32, 9, 8, channels, n()), (int) d.within(1, 2), 1, 1, 1, 1, 1, true, d.of({ GGML_TYPE_F16, GGML_TYPE_F32 }));
            default: return ggml_pool_2d(ctx, leaf(d.of({ GGML_TYPE_F32, GGML_TYPE_F16 }), 12, 9, channels, n()), d.of({ GGML_OP_POOL_MAX, GGML_OP_POOL_AVG }), 3, 2, 2, 1, 1, 1);
        }
    }
    ggml_tensor * recurrent() {
        const int64_t S = d.of({ 4, 8, 16, 20 }), H = n(), seqs = n(), T = seqs*n();
        auto x = [&] { return leaf(GGML_TYPE_F32, S, H, T); };
        ggml_tensor * state = leaf(GGML_TYPE_F32, S*S*H, seqs);
        switch (d.below(6)) {
            case 0: return ggml_rwkv_wkv6(ctx, x(), x(), x(), leaf(GGML_TYPE_F32, S, H), x(), state);
            case 1: {
                auto y = [&] { return leaf(GGML_TYPE_F32, 64, 1, T); };
                return ggml_rwkv_wkv7(ctx, y(), y(), y(), y(), y(), y(), leaf(GGML_TYPE_F32, 64*64, seqs));
            }
            case 2: return ggml_gated_linear_attn(ctx, x(), x(), x(), x(), state, 0.5f);
            case 3: {
                auto y = [&](int64_t ne0) { return leaf(GGML_TYPE_F32, ne0, H, T/seqs, seqs); };
                return ggml_gated_delta_net(ctx, y(S), y(S), y(S), d.one_in(2) ? y(1) : y(S), y(1), leaf(GGML_TYPE_F32, S, S, H, seqs), d.within(1, 3));
            }
            case 4: return ggml_ssm_conv(ctx, leaf(GGML_TYPE_F32, 3 + T, 8*H, seqs), leaf(GGML_TYPE_F32, 4, 8*H));
            default: {
                const int64_t tokens = T/seqs, cells = seqs + n() - 1, heads = 2*H, state0 = d.of({ 8, 16, 32, 5 });
                const bool wide_a = d.one_in(2);
                ggml_tensor * B = leaf(GGML_TYPE_F32, state0, d.of<int64_t>({ 1, 2 }), tokens, seqs);
                ggml_tensor * C = leaf(GGML_TYPE_F32, state0, B->ne[1], tokens, seqs);
                return ggml_ssm_scan(ctx, leaf(GGML_TYPE_F32, state0, S, heads, cells), leaf(GGML_TYPE_F32, S, heads, tokens, seqs), leaf(GGML_TYPE_F32, heads, tokens, seqs),
                    leaf(GGML_TYPE_F32, wide_a ? state0 : 1, heads), B, C, ids(GGML_TYPE_I32, cells, seqs), wide_a ? 1 : d.within(1, 2));
            }
        }
    }
    ggml_tensor * rare() {
        const int64_t N = d.within(1, 8), tokens = n(), hc = 4;
        switch (d.below(5)) {
            case 0: return ggml_solve_tri(ctx, leaf(GGML_TYPE_F32, N, N, tokens), leaf(GGML_TYPE_F32, wide(), N, tokens), true, true, false);
            case 1: {
                const int64_t heads = n(), kv = d.within(1, 40);
                ggml_tensor * k = leaf(d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0 }), 32, 1, kv);
                return ggml_lightning_indexer(ctx, leaf(GGML_TYPE_F32, 32, heads, tokens), k, leaf(GGML_TYPE_F32, heads, tokens), leaf(GGML_TYPE_F16, kv, tokens));
            }
            case 2: return ggml_dsv4_hc_comb(ctx, leaf(GGML_TYPE_F32, 24, tokens), leaf(GGML_TYPE_F32, 3), leaf(GGML_TYPE_F32, 24), 1e-6f, 3);
            case 3: return ggml_dsv4_hc_pre(ctx, leaf(GGML_TYPE_F32, 16, hc, tokens), leaf(GGML_TYPE_F32, hc, tokens));
            default: return ggml_dsv4_hc_post(ctx, leaf(GGML_TYPE_F32, 16, tokens), leaf(GGML_TYPE_F32, 16, hc, tokens), leaf(GGML_TYPE_F32, hc, tokens), d.one_in(2) ? nullptr : leaf(GGML_TYPE_F32, hc, hc, tokens));
        }
    }
    ggml_tensor * unary() {
        return ggml_unary(ctx, bent(any(d.one_in(3) ? GGML_TYPE_F16 : d.one_in(5) ? GGML_TYPE_BF16 : GGML_TYPE_F32)), (ggml_unary_op) d.below(GGML_UNARY_OP_XIELU));
    }
};

typedef ggml_tensor * (maker::*make_fn)();

const make_fn ALL[] = {
    &maker::binary, &maker::mul_mat, &maker::mul_mat_id, &maker::experts, &maker::add_id, &maker::get_rows, &maker::set_rows, &maker::copy,
    &maker::rope, &maker::soft_max, &maker::flash_attn, &maker::glu, &maker::one_to_one, &maker::norm, &maker::reduce, &maker::shape,
    &maker::set, &maker::convolution, &maker::recurrent, &maker::rare, &maker::unary,
};

} // namespace

int n_operations() {
    return (int) (sizeof(ALL)/sizeof(ALL[0]));
}

ggml_tensor * make_operation(ggml_context * ctx, dice & d, int which, ggml_tensor * before, std::vector<index_tensor> & indices) {
    maker m { ctx, d, before, indices };
    return (m.*ALL[which])();
}
