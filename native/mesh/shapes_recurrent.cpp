#include "release.h"
#include "shapes.h"

#include <cmath>

namespace mesh {

void check_ssm_conv(const ggml_tensor * t) {
    const ggml_tensor * sx = t->src[0];
    const ggml_tensor * c = t->src[1];
    REQUIRE(is_f32(sx) && is_f32(c) && is_f32(t));
    REQUIRE(ggml_is_3d(sx) && ggml_is_matrix(c));
    REQUIRE(
        is_row(sx) && sx->nb[1] == sx->ne[0] * sx->nb[0] && is_row(c) && c->nb[1] == c->ne[0] * c->nb[0] && is_new(t));
    REQUIRE(c->ne[1] == sx->ne[1]);
    REQUIRE(sx->ne[0] * sx->ne[1] <= MAX_COUNT); // where a window begins is an int
    REQUIRE(has_shape(t, sx->ne[1], sx->ne[0] - c->ne[0] + 1, sx->ne[2], 1));
}

void check_ssm_scan(const ggml_tensor * t) {
    const ggml_tensor * s = t->src[0];
    const ggml_tensor * x = t->src[1];
    const ggml_tensor * dt = t->src[2];
    const ggml_tensor * A = t->src[3];
    const ggml_tensor * B = t->src[4];
    const ggml_tensor * C = t->src[5];
    const ggml_tensor * ids = t->src[6];
    const int64_t K = SCAN_COUNTS_STATES ? param_i32(t, 0) : 1;
    for (int i = 0; i < 6; i++) {
        REQUIRE(is_f32(t->src[i]) && is_row(t->src[i]));
    }
    REQUIRE(ids->type == GGML_TYPE_I32 && is_row(ids) && ggml_is_vector(ids));
    REQUIRE(is_new(s) && is_flat(dt) && is_flat(A));
    REQUIRE(x->nb[1] == x->ne[0] * x->nb[0] && B->nb[1] == B->ne[0] * B->nb[0] && C->nb[1] == C->ne[0] * C->nb[0]);
    REQUIRE(ggml_are_same_shape(B, C));
    REQUIRE(s->ne[1] == x->ne[0] && s->ne[2] == x->ne[1]);
    REQUIRE(has_shape(dt, x->ne[1], x->ne[2], x->ne[3], 1));
    REQUIRE(B->ne[0] == s->ne[0] && x->ne[1] % B->ne[1] == 0 && B->ne[2] == x->ne[2] && B->ne[3] == x->ne[3]);
    REQUIRE(ids->ne[0] == x->ne[3]);
    REQUIRE(A->ne[1] == x->ne[1] && ggml_is_matrix(A));
    REQUIRE(K >= 1 && (A->ne[0] == 1 || (A->ne[0] == s->ne[0] && K == 1)));
    const int64_t state = s->ne[0] * s->ne[1] * s->ne[2];
    REQUIRE(K <= INT32_MAX / x->ne[3] && K * x->ne[3] <= static_cast<int64_t>(MAX_DENSE) / state);
    REQUIRE(is_f32(t) && is_new(t) && has_shape(t, ggml_nelements(x) + K * state * x->ne[3], 1, 1, 1));
}

// RWKV and gated linear attention: all but the state, which is the last, have one head size, heads and tokens.
// n is the number of sources, wide the one that is the same for all tokens, or -1
static void check_linear_attn(const ggml_tensor * t, int n, int wide) {
    const ggml_tensor * k = t->src[0];
    const ggml_tensor * state = t->src[n - 1];
    const int64_t S = k->ne[0];
    const int64_t H = k->ne[1];
    const int64_t n_tokens = k->ne[2];
    const int64_t n_seqs = state->ne[1];
    for (int i = 0; i < n; i++) {
        REQUIRE(is_f32(t->src[i]) && is_flat(t->src[i]));
        REQUIRE(i == n - 1 || i == wide || has_shape(t->src[i], S, H, n_tokens, 1));
    }
    REQUIRE(wide < 0 || ggml_nelements(t->src[wide]) == S * H);
    REQUIRE(S <= INT16_MAX && n_tokens % n_seqs == 0);
    REQUIRE(ggml_nelements(state) == S * S * H * n_seqs);
    REQUIRE(is_f32(t) && is_new(t) && has_shape(t, S * H, n_tokens + S * n_seqs, 1, 1));
}

void check_wkv6(const ggml_tensor * t) {
    check_linear_attn(t, 6, 3);
}

void check_wkv7(const ggml_tensor * t) {
    check_linear_attn(t, 7, -1);
    // the CPU takes whole vectors, of up to 64 elements on any processor, and does not stop at the end of a head
    REQUIRE(t->src[0]->ne[0] % 64 == 0);
}

void check_gated_linear(const ggml_tensor * t) {
    check_linear_attn(t, 5, -1);
}

void check_gated_delta_net(const ggml_tensor * t) {
    const ggml_tensor * q = t->src[0];
    const ggml_tensor * k = t->src[1];
    const ggml_tensor * v = t->src[2];
    const ggml_tensor * g = t->src[3];
    const ggml_tensor * beta = t->src[4];
    const ggml_tensor * state = t->src[5];
    const int64_t S_v = v->ne[0];
    const int64_t H = v->ne[1];
    const int64_t n_tokens = v->ne[2];
    const int64_t n_seqs = v->ne[3];
    const int64_t K = param_i32(t, 0);
    for (int i = 0; i < 6; i++) {
        REQUIRE(is_f32(t->src[i]) && is_row(t->src[i]));
    }
    for (const ggml_tensor * qk : { q, k }) {
        REQUIRE(qk->ne[0] == S_v && H % qk->ne[1] == 0 && qk->ne[2] == n_tokens && n_seqs % qk->ne[3] == 0);
    }
    REQUIRE(ggml_is_contiguous(g) && ggml_is_contiguous(beta) && is_new(state));
    REQUIRE((g->ne[0] == 1 || g->ne[0] == S_v) && has_shape(g, g->ne[0], H, n_tokens, n_seqs));
    REQUIRE(has_shape(beta, 1, H, n_tokens, n_seqs));
    REQUIRE(has_shape(state, S_v, S_v, H, n_seqs));
    REQUIRE(S_v <= INT16_MAX && K >= 1 && K <= INT32_MAX / n_seqs);
    REQUIRE(is_f32(t) && is_new(t) && has_shape(t, S_v * H, n_tokens * n_seqs + K * S_v * n_seqs, 1, 1));
}

// The results and sources of the three below are F32, some of the sources may be absent
static void check_hyper_connection(const ggml_tensor * t) {
    REQUIRE(is_new(t) && is_f32(t));
    for (const ggml_tensor * source : t->src) {
        REQUIRE(source == nullptr || is_f32(source));
    }
}

void check_hyper_comb(const ggml_tensor * t) {
    const ggml_tensor * mixes = t->src[0];
    const ggml_tensor * scale = t->src[1];
    const ggml_tensor * base = t->src[2];
    check_hyper_connection(t);
    REQUIRE(has_shape(mixes, 24, mixes->ne[1], 1, 1));
    REQUIRE(has_shape(scale, scale->ne[0], 1, 1, 1) && scale->ne[0] >= 3);
    REQUIRE(has_shape(base, 24, 1, 1, 1));
    REQUIRE(has_shape(t, 4, 4, mixes->ne[1], 1));
    REQUIRE(param_i32(t, 1) > 0 && param_i32(t, 1) <= 4096);
}

void check_hyper_pre(const ggml_tensor * t) {
    const ggml_tensor * x = t->src[0];
    const ggml_tensor * weights = t->src[1];
    const bool gated = param_i32(t, 1) != 0;
    check_hyper_connection(t);
    REQUIRE(x->ne[3] == 1);
    REQUIRE(gated ? has_shape(weights, x->ne[0], x->ne[1], x->ne[2], 1) : has_shape(weights, x->ne[1], x->ne[2], 1, 1));
    REQUIRE(has_shape(t, x->ne[0], x->ne[2], 1, 1));
}

void check_hyper_post(const ggml_tensor * t) {
    const ggml_tensor * x = t->src[0];
    const ggml_tensor * residual = t->src[1];
    const ggml_tensor * post = t->src[2];
    const ggml_tensor * comb = t->src[3];
    check_hyper_connection(t);
    const int64_t n = residual->ne[1];
    REQUIRE(has_shape(residual, x->ne[0], n, x->ne[1], 1) && has_shape(x, x->ne[0], x->ne[1], 1, 1));
    REQUIRE(has_shape(post, n, x->ne[1], 1, 1));
    REQUIRE(comb == nullptr || has_shape(comb, n, n, x->ne[1], 1));
    REQUIRE(has_shape(t, x->ne[0], n, x->ne[1], 1));
}

} // namespace mesh
