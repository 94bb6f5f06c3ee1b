// Indices that a kernel must not follow, wherever they come from.
#include "stage.h"

#include <cmath>
#include <cstring>

using namespace mesh;

TEST(indices_of_a_node_that_is_not_computed_are_nobodys_concern) {
    stage s;
    ggml_tensor * ids = s.make(GGML_TYPE_I32, 2);
    ggml_tensor * got = ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 3), ids);
    s.ready(got);
    s.set<int32_t>(ids, { 2, 3 });
    CHECK(s.why() == "wrong value: index 3 of 3");
    got->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    CHECK(s.why() == "");
}

// As CUDA compares: by all bytes of a node
static bool is_unlike_before(const stage & s, bool repeats) {
    const ggml_tensor before = *s.graph->nodes[0];
    s.compute(repeats);
    CHECK(std::strcmp(before.name, s.graph->nodes[0]->name) == 0);
    return std::memcmp(&before, s.graph->nodes[0], sizeof before) != 0;
}

TEST(a_graph_that_does_not_repeat_is_unlike_the_one_before) {
    stage s;
    s.ready(ggml_add(s.ctx(), s.make(GGML_TYPE_F32, 4), s.make(GGML_TYPE_F32, 4)));
    CHECK(is_unlike_before(s, false) && is_unlike_before(s, false));
    CHECK(!is_unlike_before(s, true) && !is_unlike_before(s, true));
}

TEST(places_that_are_not_computed_are_looked_at) {
    stage s;
    ggml_tensor * scores = s.make(GGML_TYPE_F32, 3);
    ggml_tensor * best = ggml_top_k(s.ctx(), scores, 2);
    s.ready(ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 3), best));
    CHECK(s.why() == "");
    best->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    s.set<float>(scores, { NAN, NAN, NAN }); // which nobody sorts
    s.set<int32_t>(best, { 1, 7 });
    CHECK(s.why() == "wrong value: index 7 of 3");
}

TEST(indices_from_outside_are_looked_at_once_before_all) {
    stage s;
    ggml_tensor * table = s.make(GGML_TYPE_F32, 4, 3);
    ggml_tensor * ids = s.make(GGML_TYPE_I32, 2);
    ggml_tensor * rows = s.make(GGML_TYPE_I64, 2);
    ggml_tensor * got = ggml_get_rows(s.ctx(), table, ids);
    ggml_tensor * kept = ggml_set_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 5), ggml_get_rows(s.ctx(), table, ids), rows);
    s.ready(ggml_add(s.ctx(), ggml_sum(s.ctx(), got), ggml_sum(s.ctx(), kept)));
    s.set<int32_t>(ids, { 0, 2 });
    s.set<int64_t>(rows, { 4, 0 });
    CHECK(s.why() == "" && s.parts() == 1);
    s.set<int32_t>(ids, { 0, 3 });
    CHECK(s.why() == "wrong value: index 3 of 3");
    s.set<int32_t>(ids, { -1, 0 });
    CHECK(s.why() == "wrong value: index -1 of 3");
    s.set<int32_t>(ids, { 0, 0 });
    s.set<int64_t>(rows, { 0, 1ll << 40 });
    CHECK(s.why() == "wrong value: index 1099511627776 of 5");
}

TEST(experts_that_are_chosen_in_the_graph_need_no_look) {
    stage s;
    ggml_tensor * experts = s.make(GGML_TYPE_F32, 4, 2, 3);
    ggml_tensor * values = s.make(GGML_TYPE_F32, 4, 1, 1);
    ggml_tensor * weights = s.make(GGML_TYPE_F32, 3, 1);
    ggml_tensor * scaled = ggml_scale(s.ctx(), weights, 2.0f);
    ggml_tensor * sorted = ggml_argsort(s.ctx(), scaled, GGML_SORT_ORDER_DESC);
    ggml_tensor * chosen = ggml_view_2d(s.ctx(), sorted, 2, 1, sorted->nb[1], sizeof(int32_t));
    s.ready(ggml_mul_mat_id(s.ctx(), experts, values, chosen));
    s.set<float>(weights, { 3, 1, 2 });
    CHECK(s.why() == "");
    CHECK(s.parts() == 2); // what is sorted is looked at
    s.set<float>(weights, { 3, NAN, 2 });
    CHECK(s.why() == "wrong value: not a number, to be sorted");
}

// A device that fuses the choice of experts writes no more than the chosen places
TEST(what_lies_behind_the_chosen_places_is_looked_at) {
    stage s;
    ggml_tensor * sorted = ggml_argsort(s.ctx(), s.make(GGML_TYPE_F32, 4), GGML_SORT_ORDER_DESC);
    ggml_tensor * ids = s.make(GGML_TYPE_I32, 2); // no source of which is known
    ggml_build_forward_expand(
        s.graph, ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 4), ggml_view_1d(s.ctx(), sorted, 2, 0)));
    s.ready(ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 4), ids));
    CHECK(s.parts() == 1);
    ids->data = static_cast<int32_t *>(sorted->data) + 2;
    CHECK(s.parts() == 2);
    sorted->flags |= GGML_TENSOR_FLAG_OUTPUT; // it is no matter of flags, which a head says
    CHECK(s.parts() == 2);
    ids->data = sorted->data; // where the chosen ones are, but in no order that is known
    CHECK(s.parts() == 2);
}

TEST(all_places_are_written_if_more_than_a_choice_needs_them) {
    stage s;
    ggml_tensor * sorted = ggml_argsort(s.ctx(), s.make(GGML_TYPE_F32, 4), GGML_SORT_ORDER_DESC);
    ggml_build_forward_expand(
        s.graph, ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 4), ggml_view_1d(s.ctx(), sorted, 2, 0)));
    s.ready(ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 4), ggml_view_1d(s.ctx(), sorted, 2, 2 * sizeof(int32_t))));
    CHECK(s.parts() == 1);
}

TEST(more_places_than_experts_are_looked_at) {
    stage s;
    ggml_tensor * table = s.make(GGML_TYPE_F32, 4, 2);
    ggml_tensor * weights = s.make(GGML_TYPE_F32, 3, 1);
    ggml_tensor * sorted = ggml_argsort(s.ctx(), weights, GGML_SORT_ORDER_DESC);
    s.ready(ggml_get_rows(s.ctx(), table, ggml_view_1d(s.ctx(), sorted, 1, 0)));
    s.set<float>(weights, { 1, 3, 2 });
    CHECK(s.why() == "" && s.parts() == 2);
    s.set<float>(weights, { 1, 2, 3 });
    CHECK(s.why() == "wrong value: index 2 of 2");
}

TEST(indices_that_a_node_writes_are_looked_at_behind_it) {
    stage s;
    ggml_tensor * table = s.make(GGML_TYPE_F32, 4, 3);
    ggml_tensor * numbers = s.make(GGML_TYPE_F32, 1);
    ggml_tensor * ids = ggml_cast(s.ctx(), ggml_scale(s.ctx(), numbers, 2.0f), GGML_TYPE_I32);
    s.ready(ggml_get_rows(s.ctx(), table, ids));
    s.set<float>(numbers, { 1 });
    CHECK(s.why() == "" && s.parts() == 2);
    s.set<float>(numbers, { 2 });
    CHECK(s.why() == "wrong value: index 4 of 3");
}
