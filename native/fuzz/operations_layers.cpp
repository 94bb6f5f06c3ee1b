// Operations as the layers of a model have them.
#include "operation_maker.h"

ggml_tensor * operation_maker::mul_mat_id() {
    const ggml_type type = weight();
    const int64_t experts = d.within(1, 8), used = d.within(1, 4), tokens = d.within(1, 6);
    ggml_tensor * a = leaf(type, row(type), d.within(1, 20), experts);
    ggml_tensor * b = leaf(GGML_TYPE_F32, a->ne[0], d.one_in(2) ? 1 : used, tokens);
    return ggml_mul_mat_id(ctx, a, b, ids(GGML_TYPE_I32, experts, used, tokens));
}

// the way a mixture of experts really goes: ids are computed, not sent
ggml_tensor * operation_maker::experts() {
    const int64_t n_experts = d.within(4, 40), tokens = d.within(1, 6);
    ggml_tensor * top = ggml_argsort_top_k(ctx, leaf(GGML_TYPE_F32, n_experts, tokens), (int) d.within(1, 4));
    ggml_tensor * a = leaf(GGML_TYPE_Q4_0, 32, d.within(1, 20), n_experts);
    return ggml_mul_mat_id(ctx, a, leaf(GGML_TYPE_F32, 32, 1, tokens), top);
}

ggml_tensor * operation_maker::rope() {
    const int64_t n_dims = 2 * d.within(1, 16), heads = n(), tokens = n();
    const int mode = d.of({ GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX, GGML_ROPE_TYPE_MROPE, GGML_ROPE_TYPE_IMROPE,
        GGML_ROPE_TYPE_VISION });
    const int64_t ne0 = mode == GGML_ROPE_TYPE_VISION ? 2 * n_dims : n_dims + (d.one_in(3) ? 2 * d.within(0, 8) : 0);
    ggml_tensor * a = leaf(d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32, ne0, heads, tokens, n());
    ggml_tensor * ff = d.one_in(3) ? leaf(GGML_TYPE_F32, mode & GGML_ROPE_TYPE_MROPE ? ne0 / 2 : n_dims / 2) : nullptr;
    if (mode & GGML_ROPE_TYPE_MROPE) {
        int sections[GGML_MROPE_SECTIONS] = { 1, (int) d.below(2), 0, 0 };
        return ggml_rope_multi(ctx, a, leaf(GGML_TYPE_I32, 4 * tokens), ff, (int) n_dims, sections, mode, 4096, 1e4f, 1,
            (float) d.below(2), 1, 32, 1);
    }
    return ggml_rope_ext(
        ctx, a, leaf(GGML_TYPE_I32, tokens), ff, (int) n_dims, mode, 4096, 1e4f, 1, (float) d.below(2), 1, 32, 1);
}

ggml_tensor * operation_maker::soft_max() {
    ggml_tensor * a = leaf(GGML_TYPE_F32, wide(), n(), n(), n());
    ggml_tensor * mask =
        d.one_in(3) ? nullptr : leaf(d.of({ GGML_TYPE_F16, GGML_TYPE_F32 }), a->ne[0], a->ne[1] + n() - 1, 1, 1);
    ggml_tensor * t = ggml_soft_max_ext(ctx, a, mask, 0.5f, mask && d.one_in(2) ? 8.0f : 0.0f);
    if (d.one_in(3)) {
        ggml_soft_max_add_sinks(t, leaf(GGML_TYPE_F32, a->ne[2]));
    }
    return t;
}

ggml_tensor * operation_maker::flash_attn() {
    const ggml_type type =
        d.of({ GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_BF16 });
    const int64_t D = type == GGML_TYPE_Q8_0 || type == GGML_TYPE_Q4_0 ? 32 : d.within(1, 40);
    const int64_t kv = d.one_in(4) ? d.within(512, 600) : d.within(1, 80), heads_kv = n(), heads = heads_kv * n(),
                  tokens = d.one_in(2) ? 1 : d.within(1, 70), seqs = n();
    ggml_tensor * q = leaf(GGML_TYPE_F32, D, tokens, heads, seqs);
    ggml_tensor * k = leaf(type, D, kv, heads_kv, seqs);
    ggml_tensor * mask = d.one_in(3) ? nullptr : leaf(GGML_TYPE_F16, kv, tokens);
    ggml_tensor * t = ggml_flash_attn_ext(ctx, q, k, leaf(type, D, kv, heads_kv, seqs), mask, 0.3f,
        mask && d.one_in(3) ? 8.0f : 0.0f, d.one_in(3) ? 30.0f : 0.0f);
    if (d.one_in(3)) {
        ggml_flash_attn_ext_add_sinks(t, leaf(GGML_TYPE_F32, heads));
    }
    return t;
}

ggml_tensor * operation_maker::glu() {
    const ggml_glu_op op = (ggml_glu_op) d.below(GGML_GLU_OP_COUNT);
    ggml_tensor * a =
        leaf(op != GGML_GLU_OP_SWIGLU_OAI && d.one_in(4) ? GGML_TYPE_F16 : GGML_TYPE_F32, 2 * wide(), n(), n());
    return d.one_in(2) ? ggml_glu(ctx, a, op, d.one_in(2))
                       : ggml_glu_split(ctx, a, leaf(a->type, a->ne[0], a->ne[1], a->ne[2]), op);
}

ggml_tensor * operation_maker::norm() {
    ggml_tensor * a = any();
    switch (d.below(6)) {
    case 0:
        return ggml_norm(ctx, bent(a), 1e-5f);
    case 1:
        return ggml_l2_norm(ctx, bent(a), 1e-5f);
    case 2:
        return ggml_group_norm(ctx, a, (int) d.within(1, a->ne[2]), 1e-5f);
    case 3:
        return ggml_mul(ctx, ggml_rms_norm(ctx, a, 1e-5f), leaf(GGML_TYPE_F32, a->ne[0])); // fused
    default:
        return ggml_rms_norm(ctx, bent(a), 1e-5f);
    }
}

ggml_tensor * operation_maker::convolution() {
    const int64_t channels = n(), kernel = d.within(1, 4);
    switch (d.below(3)) {
    case 0:
        return ggml_im2col(ctx, leaf(GGML_TYPE_F16, kernel, channels, 2),
            leaf(GGML_TYPE_F32, d.within(8, 20), channels, n()), 1, 0, (int) d.below(3), 0, 1, 0, false,
            d.of({ GGML_TYPE_F16, GGML_TYPE_F32 }));
    case 1:
        return ggml_im2col(ctx, leaf(GGML_TYPE_F16, kernel, kernel, channels, 2),
            leaf(GGML_TYPE_F32, 9, 8, channels, n()), (int) d.within(1, 2), 1, 1, 1, 1, 1, true,
            d.of({ GGML_TYPE_F16, GGML_TYPE_F32 }));
    default:
        return ggml_pool_2d(ctx, leaf(d.of({ GGML_TYPE_F32, GGML_TYPE_F16 }), 12, 9, channels, n()),
            d.of({ GGML_OP_POOL_MAX, GGML_OP_POOL_AVG }), 3, 2, 2, 1, 1, 1);
    }
}

ggml_tensor * operation_maker::recurrent() {
    const int64_t S = d.of({ 4, 8, 16, 20 }), H = n(), seqs = n(), T = seqs * n();
    auto x = [&] { return leaf(GGML_TYPE_F32, S, H, T); };
    ggml_tensor * state = leaf(GGML_TYPE_F32, S * S * H, seqs);
    switch (d.below(6)) {
    case 0:
        return ggml_rwkv_wkv6(ctx, x(), x(), x(), leaf(GGML_TYPE_F32, S, H), x(), state);
    case 1: {
        auto y = [&] { return leaf(GGML_TYPE_F32, 64, 1, T); };
        return ggml_rwkv_wkv7(ctx, y(), y(), y(), y(), y(), y(), leaf(GGML_TYPE_F32, 64 * 64, seqs));
    }
    case 2:
        return ggml_gated_linear_attn(ctx, x(), x(), x(), x(), state, 0.5f);
    case 3: {
        auto y = [&](int64_t ne0) { return leaf(GGML_TYPE_F32, ne0, H, T / seqs, seqs); };
        return ggml_gated_delta_net(
            ctx, y(S), y(S), y(S), d.one_in(2) ? y(1) : y(S), y(1), leaf(GGML_TYPE_F32, S, S, H, seqs), d.within(1, 3));
    }
    case 4:
        return ggml_ssm_conv(ctx, leaf(GGML_TYPE_F32, 3 + T, 8 * H, seqs), leaf(GGML_TYPE_F32, 4, 8 * H));
    default: {
        const int64_t tokens = T / seqs, cells = seqs + n() - 1, heads = 2 * H, state0 = d.of({ 8, 16, 32, 5 });
        const bool wide_a = d.one_in(2);
        ggml_tensor * B = leaf(GGML_TYPE_F32, state0, d.of<int64_t>({ 1, 2 }), tokens, seqs);
        ggml_tensor * C = leaf(GGML_TYPE_F32, state0, B->ne[1], tokens, seqs);
        return ggml_ssm_scan(ctx, leaf(GGML_TYPE_F32, state0, S, heads, cells),
            leaf(GGML_TYPE_F32, S, heads, tokens, seqs), leaf(GGML_TYPE_F32, heads, tokens, seqs),
            leaf(GGML_TYPE_F32, wide_a ? state0 : 1, heads), B, C, ids(GGML_TYPE_I32, cells, seqs),
            wide_a ? 1 : d.within(1, 2));
    }
    }
}

ggml_tensor * operation_maker::rare() {
    const int64_t N = d.within(1, 8), tokens = n(), hc = 4;
    switch (d.below(5)) {
    case 0:
        return ggml_solve_tri(
            ctx, leaf(GGML_TYPE_F32, N, N, tokens), leaf(GGML_TYPE_F32, wide(), N, tokens), true, true, false);
    case 1: {
        const int64_t heads = n(), kv = d.within(1, 40);
        ggml_tensor * k = leaf(d.of({ GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0 }), 32, 1, kv);
        return ggml_lightning_indexer(ctx, leaf(GGML_TYPE_F32, 32, heads, tokens), k,
            leaf(GGML_TYPE_F32, heads, tokens), leaf(GGML_TYPE_F16, kv, tokens));
    }
    case 2:
        return ggml_dsv4_hc_comb(
            ctx, leaf(GGML_TYPE_F32, 24, tokens), leaf(GGML_TYPE_F32, 3), leaf(GGML_TYPE_F32, 24), 1e-6f, 3);
    case 3:
        return ggml_dsv4_hc_pre(ctx, leaf(GGML_TYPE_F32, 16, hc, tokens), leaf(GGML_TYPE_F32, hc, tokens));
    default:
        return ggml_dsv4_hc_post(ctx, leaf(GGML_TYPE_F32, 16, tokens), leaf(GGML_TYPE_F32, 16, hc, tokens),
            leaf(GGML_TYPE_F32, hc, tokens), d.one_in(2) ? nullptr : leaf(GGML_TYPE_F32, hc, hc, tokens));
    }
}
