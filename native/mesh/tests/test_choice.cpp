// The choice of experts is fused as models have it, and not at all otherwise.
#include "choice.h"
#include "stage.h"

using namespace mesh;

namespace {

constexpr int64_t TOKENS = 3;

// The places of a choice in its graph
struct choice {
    stage s;
    ggml_tensor * scores = nullptr;
    ggml_tensor * bias = nullptr;
    ggml_tensor * sorted = nullptr;
    ggml_tensor * places = nullptr;
    ggml_tensor * weights = nullptr;

    // As llama.cpp's build_moe_ffn() does; what a gate gives is not computed here
    void choose(
        int64_t experts, int64_t used, ggml_tensor * (*gate)(ggml_context *, ggml_tensor *), bool biased = false) {
        ggml_context * c = s.ctx();
        scores = s.make(GGML_TYPE_F32, experts, TOKENS);
        ggml_tensor * probabilities = gate(c, scores);
        ggml_tensor * compared = probabilities;
        if (biased) {
            bias = bias != nullptr ? bias : s.make(GGML_TYPE_F32, experts);
            compared = ggml_add(c, probabilities, bias);
        }
        sorted = ggml_argsort(c, compared, GGML_SORT_ORDER_DESC);
        places = ggml_view_2d(c, sorted, used, TOKENS, sorted->nb[1], 0);
        weights = ggml_get_rows(c, ggml_reshape_3d(c, probabilities, 1, experts, TOKENS), places);
    }

    void normalize() {
        ggml_context * c = s.ctx();
        weights = ggml_reshape_2d(c, weights, weights->ne[1], TOKENS);
        weights = ggml_div(c, weights, ggml_clamp(c, ggml_sum_rows(c, weights), 1e-5f, INFINITY));
        weights = ggml_reshape_3d(c, weights, 1, weights->ne[0], TOKENS);
    }

    void soften() {
        ggml_context * c = s.ctx();
        weights = ggml_soft_max(c, ggml_reshape_2d(c, weights, weights->ne[1], TOKENS));
        weights = ggml_reshape_3d(c, weights, 1, weights->ne[0], TOKENS);
    }

    int place() const {
        int i = 0;
        while (s.graph->nodes[i] != sorted) {
            i++;
        }
        return i;
    }

    int32_t uses() const { return ggml_node_get_use_count(s.graph, place()); }

    // Whether a device may let the kernel of a choice do it; the head says how often each node is used
    bool is_fused() {
        s.ready(weights);
        correct_uses(s.graph);
        return uses() == 1;
    }
};

ggml_tensor * same(ggml_context *, ggml_tensor * scores) {
    return scores;
}

} // namespace

TEST(choices_of_models_are_fused) {
    choice plain;
    plain.choose(8, 2, ggml_soft_max); // Mixtral
    CHECK(plain.is_fused());
    CHECK(ggml_can_fuse_subgraph(plain.s.graph, plain.place() - 2,
        { GGML_OP_SOFT_MAX, GGML_OP_RESHAPE, GGML_OP_ARGSORT, GGML_OP_VIEW, GGML_OP_GET_ROWS },
        { plain.place() + 1, plain.place() + 2 }));
    choice normal;
    normal.choose(128, 8, ggml_soft_max); // Qwen3
    normal.normalize();
    CHECK(normal.is_fused());
    choice biased;
    biased.choose(256, 8, ggml_sigmoid, true); // DeepSeek V3
    biased.normalize();
    biased.weights = ggml_scale(biased.s.ctx(), biased.weights, 2.5f);
    CHECK(biased.is_fused());
    CHECK(biased.s.graph->nodes[biased.place() + 8] == biased.weights);
    choice late;
    late.choose(32, 4, same); // gpt-oss
    late.soften();
    CHECK(late.is_fused());
    CHECK(late.s.graph->nodes[late.place() + 5] == late.weights);
}

TEST(weights_that_the_kernel_would_write_elsewhere_are_not_fused) {
    choice normal;
    normal.choose(128, 8, ggml_soft_max);
    normal.normalize();
    normal.weights = ggml_reshape_3d(normal.s.ctx(), normal.weights->src[0], 1, 8 * TOKENS, 1); // 24 places of each row
    CHECK(!normal.is_fused());
    CHECK(normal.s.graph->nodes[normal.place() + 7] == normal.weights);
    choice late;
    late.choose(128, 8, same);
    late.soften();
    late.weights = ggml_reshape_3d(late.s.ctx(), late.weights->src[0], 1, 8 * TOKENS, 1);
    CHECK(!late.is_fused());
    choice other;
    other.choose(128, 8, ggml_soft_max);
    other.sorted->ne[1] = 1; // the kernel has the scores' rows
    CHECK(!other.is_fused());
}

TEST(places_that_are_not_the_first_of_their_rows_are_not_fused) {
    for (const size_t offset : { sizeof(int32_t), sizeof(int32_t) * 120 }) {
        choice one;
        one.choose(128, 8, ggml_soft_max);
        one.places->view_offs = offset;
        CHECK(!one.is_fused());
    }
    choice rows;
    rows.choose(128, 8, ggml_soft_max);
    rows.places->nb[1] *= 2;
    rows.places->ne[1] = rows.weights->ne[2] = 1;
    CHECK(!rows.is_fused());
}

TEST(scores_of_which_a_kernel_might_choose_none_are_not_fused) {
    choice few; // threads without an expert take one that does not exist where no score is a number
    few.choose(8, 2, ggml_sigmoid);
    CHECK(!few.is_fused());
    choice biased;
    biased.choose(8, 2, ggml_soft_max, true);
    CHECK(!biased.is_fused());
    choice narrow; // the kernel reads a bias for each expert
    narrow.bias = narrow.s.make(GGML_TYPE_F32, 1);
    narrow.choose(256, 8, ggml_sigmoid, true);
    CHECK(!narrow.is_fused());
    choice rows; // and the same one for each token
    rows.bias = rows.s.make(GGML_TYPE_F32, 256, TOKENS);
    rows.choose(256, 8, ggml_sigmoid, true);
    CHECK(!rows.is_fused());
}

TEST(uses_are_at_least_those_of_the_graph) {
    choice one;
    one.choose(128, 8, ggml_soft_max);
    ggml_build_forward_expand(one.s.graph, ggml_cont(one.s.ctx(), one.sorted));
    one.s.ready(one.weights);
    for (const int32_t said : { 0, 1, -7, 5, INT32_MAX }) {
        const size_t slot = ggml_hash_find(&one.s.graph->visited_hash_set, one.sorted);
        one.s.graph->use_counts[slot] = said;
        correct_uses(one.s.graph);
        CHECK(one.uses() > (said == 5 ? 5 : 2));
    }
}
