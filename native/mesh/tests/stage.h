// A graph on the CPU, made by ggml's own constructors.
#pragma once

#include "check.h"
#include "guard.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml-impl.h"

namespace mesh {

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

    void compute(bool repeats) const {
        CHECK(graph_guard(graph).compute(cpu.get(), graph, {}, repeats) == GGML_STATUS_SUCCESS);
    }

    size_t parts() const { return graph_guard(graph).parts(); }

    ggml_context * ctx() { return context.get(); }

    ggml_cgraph * graph;

private:
    ggml_backend_ptr cpu;
    ggml_context_ptr context;
    ggml_backend_buffer_ptr memory;
};

} // namespace mesh
