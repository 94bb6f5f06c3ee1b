// Small results of a graph are read as they were computed, whatever ggml's allocator lets later nodes write over.
#include "check.h"
#include "client.h"
#include "served.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"

using namespace mesh;

static ggml_backend_reg no_registry = {};

// ggml's allocator takes the layout of the graph before, in which the same node was no result
TEST(a_small_result_is_not_overwritten_within_its_graph) {
    static const weights_index none;
    auto * server = new served(); // for as long as the process is, as its backend
    server->detach();
    ggml_backend_t worker =
        ggml_backend_dev_init(&open_workers({ { server->own_end } }, &no_registry, none, 0)[0]->device, nullptr);
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(worker);
    ggml_gallocr_t allocator = ggml_gallocr_new(type);
    ggml_context_ptr inputs(ggml_init({ ggml_tensor_overhead(), nullptr, true }));
    ggml_tensor * given = ggml_new_tensor_1d(inputs.get(), GGML_TYPE_F32, 4);
    ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(inputs.get(), worker));
    const std::vector<float> values = { 1, 2, 3, 4 };
    ggml_backend_tensor_set(given, values.data(), 0, ggml_nbytes(given));
    for (const bool is_result : { false, true, true }) {
        ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true }));
        ggml_context * ctx = context.get();
        ggml_tensor * candidates = ggml_sqr(ctx, given);
        ggml_tensor * last = ggml_view_1d(ctx, candidates, 1, 3 * sizeof(float));
        ggml_tensor * sum = ggml_sum(ctx, candidates);
        ggml_tensor * twice = ggml_sqr(ctx, last);
        ggml_tensor * later = ggml_neg(ctx, given);
        ggml_cgraph * graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, sum);
        ggml_build_forward_expand(graph, twice);
        ggml_build_forward_expand(graph, ggml_add(ctx, ggml_add(ctx, later, sum), twice));
        graph->uid = 0;
        if (is_result) {
            ggml_set_output(candidates);
        }
        CHECK(ggml_gallocr_alloc_graph(allocator, graph));
        CHECK(later->data == candidates->data); // or this shows nothing
        CHECK(ggml_backend_graph_compute(worker, graph) == GGML_STATUS_SUCCESS);
        std::vector<float> got(4);
        ggml_backend_tensor_get(candidates, got.data(), 0, ggml_nbytes(candidates));
        CHECK((got == std::vector<float>{ 1, 4, 9, 16 }) == is_result);
        ggml_backend_tensor_get(last, got.data(), 0, ggml_nbytes(last));
        CHECK((got[0] == 16) == is_result);
    }
    ggml_gallocr_free(allocator);
    memory.reset();
    ggml_backend_free(worker);
}
