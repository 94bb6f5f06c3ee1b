// Indices that a kernel must not follow, wherever they come from.
#include "check.h"
#include "guard.h"
#include "wire.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <cmath>

using namespace mesh;

// A graph on the CPU, made by ggml's own constructors
class stage {
public:
    stage() : cpu(ggml_backend_cpu_init()) {
        context.reset(ggml_init({ ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true }));
        graph = ggml_new_graph(context.get());
        ggml_backend_cpu_set_n_threads(cpu.get(), 1); // TSan does not know what OpenMP's threads wait for
    }

    ggml_tensor * make(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        return ggml_new_tensor_3d(context.get(), type, ne0, ne1, ne2);
    }

    void ready(ggml_tensor * result) {
        ggml_build_forward_expand(graph, result);
        memory.reset(ggml_backend_alloc_ctx_tensors(context.get(), cpu.get()));
        ggml_backend_buffer_clear(memory.get(), 0);
    }

    template <class Value> void set(ggml_tensor * tensor, std::vector<Value> values) {
        ggml_backend_tensor_set(tensor, values.data(), 0, values.size() * sizeof(Value));
    }

    std::string why() const {
        const graph_guard guard(graph);
        return thrown_by([&] { CHECK(guard.compute(cpu.get(), graph) == GGML_STATUS_SUCCESS); });
    }

    size_t parts() const { return graph_guard(graph).parts(); }

    ggml_context * ctx() { return context.get(); }

private:
    ggml_backend_ptr cpu;
    ggml_context_ptr context;
    ggml_backend_buffer_ptr memory;
    ggml_cgraph * graph;
};

TEST(indices_of_a_node_that_is_not_computed_are_nobodys_concern) {
    stage s;
    ggml_tensor * ids = s.make(GGML_TYPE_I32, 2);
    ggml_tensor * got = ggml_get_rows(s.ctx(), s.make(GGML_TYPE_F32, 4, 3), ids);
    s.ready(got);
    s.set<int32_t>(ids, { 2, 3 });
    CHECK(s.why() == "index 3 of 3");
    got->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    CHECK(s.why() == "");
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
    CHECK(s.why() == "index 7 of 3");
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
    CHECK(s.why() == "index 3 of 3");
    s.set<int32_t>(ids, { -1, 0 });
    CHECK(s.why() == "index -1 of 3");
    s.set<int32_t>(ids, { 0, 0 });
    s.set<int64_t>(rows, { 0, 1ll << 40 });
    CHECK(s.why() == "index 1099511627776 of 5");
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
    CHECK(s.why() == "a value to be sorted is not a number");
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
    CHECK(s.why() == "index 2 of 2");
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
    CHECK(s.why() == "index 4 of 3");
}
