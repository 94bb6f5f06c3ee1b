// What llama-server computes while it loads, to look at its cache's bookkeeping, is neither sent nor waited for.
#include "check.h"
#include "client.h"
#include "served.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"

using namespace mesh;

static ggml_backend_reg no_registry = {};

// A worker with a cache, and a graph that squares what was written to it
struct cached_worker {
    explicit cached_worker(uint32_t place) {
        static const weights_index none;
        auto * server = new served(); // for as long as the process is, as its backend
        server->detach();
        device = open_workers({ { server->own_end } }, &no_registry, none, place)[0];
        backend = ggml_backend_dev_init(&device->device, nullptr);
        context.reset(ggml_init({ ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true }));
        given = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 4);
        squares = ggml_sqr(context.get(), given);
        graph = ggml_new_graph(context.get());
        ggml_build_forward_expand(graph, squares);
        memory.reset(ggml_backend_alloc_ctx_tensors(context.get(), backend));
        cache.reset(ggml_backend_alloc_buffer(backend, 64));
    }
    ~cached_worker() {
        memory.reset();
        cache.reset();
        ggml_backend_free(backend);
    }

    void clear() { ggml_backend_buffer_clear(cache.get(), 0); }
    std::vector<float> computed() {
        const std::vector<float> values = { 1, 2, 3, 4 };
        ggml_backend_tensor_set(given, values.data(), 0, ggml_nbytes(given));
        CHECK(ggml_backend_graph_compute_async(backend, graph) == GGML_STATUS_SUCCESS);
        std::vector<float> got(4, -1);
        ggml_backend_tensor_get_async(backend, squares, got.data(), 0, ggml_nbytes(squares));
        ggml_backend_synchronize(backend);
        return got;
    }

    client_device * device;
    ggml_backend_t backend;
    ggml_context_ptr context;
    ggml_tensor * given;
    ggml_tensor * squares;
    ggml_cgraph * graph;
    ggml_backend_buffer_ptr memory;
    ggml_backend_buffer_ptr cache;
};

static const std::vector<float> UNREAD = { 0, 0, 0, 0 };
static const std::vector<float> SQUARES = { 1, 4, 9, 16 };

TEST(the_check_of_a_context_asks_the_worker_nothing) {
    cached_worker worker(40);
    worker.clear(); // it is made
    worker.clear(); // the check begins
    const uint64_t before = worker.device->worker->link.asked();
    CHECK(worker.computed() == UNREAD);
    CHECK(worker.device->worker->link.asked() == before + 1); // what is written goes with the next request
    worker.clear();
    CHECK(worker.computed() == SQUARES);
    worker.clear();
    worker.clear();
    CHECK(worker.computed() == SQUARES);
}

TEST(a_llama_server_without_that_check_gets_what_it_computes) {
    cached_worker worker(41);
    worker.clear();
    CHECK(worker.computed() == SQUARES);
    worker.clear(); // as its own warm-up does
    worker.clear();
    CHECK(worker.computed() == SQUARES);
}

TEST(one_computation_is_skipped_at_most) {
    cached_worker worker(42);
    worker.clear();
    worker.clear();
    CHECK(worker.computed() == UNREAD);
    CHECK(worker.computed() == SQUARES);
}

// Each worker has a cache; the second one computes with what the first one has
TEST(results_of_the_check_reach_no_other_device) {
    context_check check;
    bool first = false;
    bool second = false;
    check.cleared(0);
    check.cleared(0);
    CHECK(!check.skips_result(first));
    check.cleared(1);
    check.cleared(1);
    CHECK(check.skips_compute(first));
    CHECK(check.skips_result(first)); // to the second one
    CHECK(check.skips_compute(second));
    CHECK(check.skips_result(second));
    CHECK(check.skips_result(second)); // piece by piece
    check.cleared(2);
    CHECK(!check.skips_result(second));
    CHECK(!check.skips_compute(first));
}

// llama.cpp clears the cache again, whatever came of the two tokens
TEST(a_check_that_never_began_is_over_once_the_cache_is_cleared_again) {
    context_check check;
    bool wanted = false;
    check.cleared(0);
    check.cleared(1);
    check.cleared(2);
    CHECK(!check.skips_compute(wanted));
    CHECK(!check.skips_result(wanted));
}
