#include "trial_operations.h"

#include "release.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <type_traits>

namespace mesh {

static constexpr int64_t ROWS = 64;   // of a matrix: its columns are as many as the model's
static constexpr int64_t EXPERTS = 8; // most of a mixture

typedef trial_numbers asked;

static bool whole_rows(ggml_type type, int64_t n) {
    return n % ggml_blck_size(type) == 0;
}

static bool mul_mat(trial_graph & g, const asked & a) {
    g.limit = MULTIPLIED_ERROR;
    ggml_tensor * weights = g.any(a.types[0], { a.n[0], ROWS });
    g.result(ggml_mul_mat(g.context.get(), weights, g.any(GGML_TYPE_F32, { a.n[0], g.tokens })));
    return true;
}

static bool mul_mat_id(trial_graph & g, const asked & a) {
    const int64_t experts = std::min(a.n[1], EXPERTS);
    const int64_t used = std::min(a.n[2], experts);
    g.limit = MULTIPLIED_ERROR;
    ggml_tensor * weights = g.any(a.types[0], { a.n[0], ROWS, experts });
    ggml_tensor * ids = g.leaf(GGML_TYPE_I32, { used, g.tokens },
        [=](int64_t i) { return static_cast<double>((i / used * 3 + i % used) % experts); });
    for (const int64_t rows : { int64_t(1), used }) {
        g.result(ggml_mul_mat_id(g.context.get(), weights, g.any(GGML_TYPE_F32, { a.n[0], rows, g.tokens }), ids));
    }
    return true;
}

static bool get_rows(trial_graph & g, const asked & a) {
    ggml_tensor * rows =
        g.leaf(GGML_TYPE_I32, { g.tokens }, [](int64_t i) { return static_cast<double>(i * 7 % ROWS); });
    g.result(ggml_get_rows(g.context.get(), g.any(a.types[0], { a.n[0], ROWS }), rows));
    return true;
}

static bool set_rows(trial_graph & g, const asked & a) {
    ggml_tensor * cache = g.leaf(a.types[0], { a.n[0], g.cells }, [](int64_t) { return 0.0; });
    ggml_tensor * rows = g.leaf(
        GGML_TYPE_I64, { g.tokens }, [cells = g.cells](int64_t i) { return static_cast<double>(i * 5 % cells); });
    g.result(ggml_set_rows(g.context.get(), cache, g.any(GGML_TYPE_F32, { a.n[0], g.tokens }), rows));
    return true;
}

static bool rms_norm(trial_graph & g, const asked & a) {
    ggml_tensor * x = ggml_rms_norm(g.context.get(), g.any(GGML_TYPE_F32, { a.n[0], g.tokens }), 1e-5f);
    g.result(ggml_mul(g.context.get(), x, g.any(GGML_TYPE_F32, { a.n[0] })));
    return true;
}

static bool norm(trial_graph & g, const asked & a) {
    ggml_tensor * x = ggml_norm(g.context.get(), g.any(GGML_TYPE_F32, { a.n[0], g.tokens }), 1e-5f);
    x = ggml_mul(g.context.get(), x, g.any(GGML_TYPE_F32, { a.n[0] }));
    g.result(ggml_add(g.context.get(), x, g.any(GGML_TYPE_F32, { a.n[0] })));
    return true;
}

static bool rope(trial_graph & g, const asked & a) {
    const int64_t head = a.n[0];
    const int64_t heads = a.n[1];
    const int64_t turned = a.n[2];
    if (turned > head || turned % 2 != 0) {
        return false;
    }
    ggml_tensor * places = g.leaf(GGML_TYPE_I32, { g.tokens }, [](int64_t i) { return static_cast<double>(i * 11); });
    for (const int mode : { GGML_ROPE_TYPE_NORMAL, GGML_ROPE_TYPE_NEOX }) {
        ggml_tensor * x = g.any(GGML_TYPE_F32, { head, heads, g.tokens });
        g.result(ggml_rope_ext(g.context.get(), x, places, nullptr, static_cast<int>(turned), mode, 4096, 10000.0f,
            1.0f, 0.0f, 1.0f, 32.0f, 1.0f));
    }
    return true;
}

// Keys or values as they lie in a cache: the heads of a token side by side
static ggml_tensor * cached(trial_graph & g, ggml_type type, int64_t head, int64_t heads) {
    ggml_tensor * cache = g.any(type, { head * heads, g.cells });
    ggml_tensor * view =
        ggml_view_3d(g.context.get(), cache, head, heads, g.cells, ggml_row_size(type, head), cache->nb[1], 0);
    return ggml_permute(g.context.get(), view, 0, 2, 1, 3);
}

static ggml_tensor * mask_of(trial_graph & g) {
    // all tokens see all of the cache but its last part
    const int64_t seen = g.cells - 156;
    return g.leaf(GGML_TYPE_F16, { g.cells, g.tokens }, [cells = g.cells, seen](int64_t i) {
        return i % cells <= i / cells + seen ? 0.0 : static_cast<double>(-INFINITY);
    });
}

static ggml_tensor * query_of(trial_graph & g, const asked & a) {
    ggml_tensor * query = g.any(GGML_TYPE_F32, { a.n[0], a.n[2], g.tokens });
    return ggml_permute(g.context.get(), query, 0, 2, 1, 3);
}

static bool heads_fit(const asked & a) {
    return a.n[2] % a.n[3] == 0 && whole_rows(a.types[0], a.n[0]) && whole_rows(a.types[1], a.n[1]);
}

static bool flash_attention(trial_graph & g, const asked & a) {
    if (!heads_fit(a)) {
        return false;
    }
    g.limit = MULTIPLIED_ERROR;
    ggml_tensor * query = query_of(g, a);
    ggml_tensor * keys = cached(g, a.types[0], a.n[0], a.n[3]);
    ggml_tensor * values = cached(g, a.types[1], a.n[1], a.n[3]);
    const float scale = 1.0f / std::sqrt(static_cast<float>(a.n[0]));
    ggml_tensor * out = ggml_flash_attn_ext(g.context.get(), query, keys, values, mask_of(g), scale, 0.0f, 0.0f);
    sum_in_f32(out, 0);
    g.result(out);
    return true;
}

// The same without flash attention: values lie crosswise, where there are no blocks
static bool attention(trial_graph & g, const asked & a) {
    if (!heads_fit(a) || ggml_is_quantized(a.types[1])) {
        return false;
    }
    g.limit = MULTIPLIED_ERROR;
    ggml_context * ctx = g.context.get();
    ggml_tensor * query = query_of(g, a);
    ggml_tensor * scores = ggml_mul_mat(ctx, cached(g, a.types[0], a.n[0], a.n[3]), query);
    sum_in_f32(scores, 0);
    const float scale = 1.0f / std::sqrt(static_cast<float>(a.n[0]));
    scores = ggml_soft_max_ext(ctx, scores, mask_of(g), scale, 0.0f);
    ggml_tensor * out = ggml_mul_mat(ctx, g.any(a.types[1], { g.cells, a.n[1], a.n[3] }), scores);
    g.result(ggml_cont_2d(ctx, ggml_permute(ctx, out, 0, 2, 1, 3), a.n[1] * a.n[2], g.tokens));
    return true;
}

static bool glu(trial_graph & g, const asked & a) {
    ggml_tensor * gate = g.any(GGML_TYPE_F32, { a.n[0], g.tokens }, -4.0, 4.0);
    ggml_tensor * up = g.any(GGML_TYPE_F32, { a.n[0], g.tokens });
    g.result(ggml_swiglu_split(g.context.get(), gate, up));
    g.result(ggml_geglu_split(g.context.get(), gate, up));
    return true;
}

static bool activation(trial_graph & g, const asked & a) {
    ggml_tensor * x = g.any(GGML_TYPE_F32, { a.n[0], g.tokens }, -4.0, 4.0);
    g.result(ggml_gelu(g.context.get(), x));
    g.result(ggml_silu(g.context.get(), x));
    g.result(ggml_sqr(g.context.get(), ggml_relu(g.context.get(), x)));
    return true;
}

static bool sums(trial_graph & g, const asked & a) {
    ggml_context * ctx = g.context.get();
    ggml_tensor * x = g.any(GGML_TYPE_F32, { a.n[0], g.tokens });
    ggml_tensor * y = ggml_add(ctx, x, g.any(GGML_TYPE_F32, { a.n[0], g.tokens }));
    g.result(ggml_scale(ctx, ggml_mul(ctx, y, g.any(GGML_TYPE_F32, { a.n[0] })), 0.5f));
    g.result(ggml_cont(ctx, ggml_transpose(ctx, y)));
    return true;
}

// Which experts a token goes to, and with what weights
static bool route(trial_graph & g, const asked & a) {
    const int64_t experts = a.n[0];
    const int64_t used = std::min(a.n[1], experts);
    ggml_context * ctx = g.context.get();
    ggml_tensor * shares = ggml_soft_max(ctx, g.any(GGML_TYPE_F32, { experts, g.tokens }, -4.0, 4.0));
    ggml_tensor * chosen = ggml_argsort_top_k(ctx, shares, static_cast<int>(used));
    ggml_tensor * picked = ggml_get_rows(ctx, ggml_reshape_3d(ctx, shares, 1, experts, g.tokens), chosen);
    picked = ggml_reshape_2d(ctx, picked, used, g.tokens);
    g.result(ggml_div(ctx, picked, ggml_sum_rows(ctx, picked)));
    return true;
}

static bool ssm_conv(trial_graph & g, const asked & a) {
    ggml_tensor * x = g.any(GGML_TYPE_F32, { a.n[0] - 1 + g.tokens, a.n[1], 1 });
    g.result(ggml_silu(g.context.get(), ggml_ssm_conv(g.context.get(), x, g.any(GGML_TYPE_F32, { a.n[0], a.n[1] }))));
    return a.n[0] > 1;
}

// Some releases keep several states, and ask how many
template <class Scan, class... Given> static ggml_tensor * scanned(Scan scan, Given... given) {
    if constexpr (std::is_invocable_v<Scan, Given..., int64_t>) {
        return scan(given..., 1);
    } else {
        return scan(given...);
    }
}

static bool ssm_scan(trial_graph & g, const asked & a) {
    const int64_t state = a.n[0];
    const int64_t width = a.n[1];
    const int64_t heads = a.n[2];
    const int64_t groups = a.n[3];
    if (heads % groups != 0) {
        return false;
    }
    ggml_tensor * s = g.any(GGML_TYPE_F32, { state, width, heads, 1 });
    ggml_tensor * x = g.any(GGML_TYPE_F32, { width, heads, g.tokens, 1 });
    ggml_tensor * dt = g.any(GGML_TYPE_F32, { heads, g.tokens, 1 });
    ggml_tensor * decay = g.any(GGML_TYPE_F32, { width > 1 ? 1 : state, heads }, -1.0, -0.1);
    ggml_tensor * in = g.any(GGML_TYPE_F32, { state, groups, g.tokens, 1 });
    ggml_tensor * out = g.any(GGML_TYPE_F32, { state, groups, g.tokens, 1 });
    ggml_tensor * sequences = g.leaf(GGML_TYPE_I32, { 1 }, [](int64_t) { return 0.0; });
    g.limit = MULTIPLIED_ERROR;
    g.result(scanned(ggml_ssm_scan, g.context.get(), s, x, dt, decay, in, out, sequences));
    return true;
}

static ggml_tensor * by_heads(trial_graph & g, const asked & a, double low = -1.0, double high = 1.0) {
    return g.any(GGML_TYPE_F32, { a.n[0], a.n[1], g.tokens }, low, high);
}

static bool wkv6(trial_graph & g, const asked & a) {
    ggml_tensor * k = by_heads(g, a);
    ggml_tensor * v = by_heads(g, a);
    ggml_tensor * r = by_heads(g, a);
    ggml_tensor * decay = by_heads(g, a, 0.1, 0.9);
    ggml_tensor * first = g.any(GGML_TYPE_F32, { a.n[0], a.n[1] });
    ggml_tensor * state = g.any(GGML_TYPE_F32, { a.n[0] * a.n[0] * a.n[1], 1 });
    g.limit = MULTIPLIED_ERROR;
    g.result(ggml_rwkv_wkv6(g.context.get(), k, v, r, first, decay, state));
    return true;
}

static bool wkv7(trial_graph & g, const asked & a) {
    ggml_tensor * r = by_heads(g, a);
    ggml_tensor * decay = by_heads(g, a, 0.1, 0.9);
    ggml_tensor * k = by_heads(g, a);
    ggml_tensor * v = by_heads(g, a);
    ggml_tensor * x = ggml_l2_norm(g.context.get(), by_heads(g, a), 1e-7f);
    ggml_tensor * y = ggml_l2_norm(g.context.get(), by_heads(g, a), 1e-7f);
    ggml_tensor * state = g.any(GGML_TYPE_F32, { a.n[0] * a.n[0] * a.n[1], 1 });
    g.limit = MULTIPLIED_ERROR;
    g.result(ggml_rwkv_wkv7(g.context.get(), r, decay, k, v, x, y, state));
    return true;
}

static bool delta(trial_graph & g, const asked & a) {
    const int64_t head = a.n[0];
    const int64_t key_heads = a.n[1];
    const int64_t heads = a.n[2];
    if (heads % key_heads != 0) {
        return false;
    }
    ggml_context * ctx = g.context.get();
    ggml_tensor * q = ggml_l2_norm(ctx, g.any(GGML_TYPE_F32, { head, key_heads, g.tokens, 1 }), 1e-6f);
    ggml_tensor * k = ggml_l2_norm(ctx, g.any(GGML_TYPE_F32, { head, key_heads, g.tokens, 1 }), 1e-6f);
    ggml_tensor * v = g.any(GGML_TYPE_F32, { head, heads, g.tokens, 1 });
    ggml_tensor * gate = g.any(GGML_TYPE_F32, { 1, heads, g.tokens, 1 }, -4.0, -0.01);
    ggml_tensor * beta = g.any(GGML_TYPE_F32, { 1, heads, g.tokens, 1 }, 0.0, 1.0);
    ggml_tensor * state = g.any(GGML_TYPE_F32, { head, head, heads, 1 });
    g.limit = MULTIPLIED_ERROR;
    g.result(ggml_gated_delta_net(ctx, q, k, v, gate, beta, state, 1));
    return true;
}

static const std::map<std::string, trial_operation> KNOWN = {
    { "mul_mat", { 1, 1, true, mul_mat } },             // length of a row
    { "mul_mat_id", { 1, 3, true, mul_mat_id } },       // length of a row, experts, used ones
    { "get_rows", { 1, 1, true, get_rows } },           // length of a row
    { "set_rows", { 1, 1, true, set_rows } },           // length of a row
    { "rms_norm", { 0, 1, false, rms_norm } },          // length of a row
    { "norm", { 0, 1, false, norm } },                  // length of a row
    { "rope", { 0, 3, false, rope } },                  // head, heads, turned ones of a head
    { "flash_attn", { 2, 4, false, flash_attention } }, // key and value, heads, of those in the cache
    { "attention", { 2, 4, false, attention } },        // the same
    { "glu", { 0, 1, false, glu } },                    // length of a row
    { "activation", { 0, 1, false, activation } },      // length of a row
    { "sums", { 0, 1, false, sums } },                  // length of a row
    { "route", { 0, 2, false, route } },                // experts, used ones
    { "ssm_conv", { 0, 2, false, ssm_conv } },          // width of the filter, channels
    { "ssm_scan", { 0, 4, false, ssm_scan } },          // state, head, heads, groups
    { "wkv6", { 0, 2, false, wkv6 } },                  // head, heads
    { "wkv7", { 0, 2, false, wkv7 } },                  // head, heads
    { "delta", { 0, 3, false, delta } },                // head, heads of keys, heads of values
};

const trial_operation * find_trial_operation(const std::string & name) {
    const auto found = KNOWN.find(name);
    return found == KNOWN.end() ? nullptr : &found->second;
}

} // namespace mesh
