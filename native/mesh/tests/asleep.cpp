// What makes a mesh-server of mesh-server-asleep: the linker puts this in place of computing (`--wrap`). It sleeps as
// long as one thread of a CPU would take for the matrices of a graph, so the stages of more workers than there are
// cores overlap as they would on machines of their own. Nothing is computed: texts mean nothing.
#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#include <chrono>
#include <thread>

static constexpr double PRODUCTS_PER_SECOND = 15e9; // SmolLM2: 2048 tokens in 14.5 s

static double products(const ggml_cgraph * graph) {
    double sum = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) {
            sum += static_cast<double>(ggml_nelements(node)) * static_cast<double>(node->src[0]->ne[0]);
        }
    }
    return sum;
}

extern "C" ggml_status __wrap_ggml_backend_graph_compute_async(ggml_backend_t backend, ggml_cgraph * graph);

extern "C" ggml_status __wrap_ggml_backend_graph_compute_async(ggml_backend_t, ggml_cgraph * graph) {
    std::this_thread::sleep_for(std::chrono::duration<double>(products(graph) / PRODUCTS_PER_SECOND));
    return GGML_STATUS_SUCCESS;
}
