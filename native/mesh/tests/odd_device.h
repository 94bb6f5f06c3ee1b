// A device of its own that computes by the CPU, and does one thing otherwise.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-cpu.h"

#include <set>
#include <vector>

namespace mesh {

enum class oddity { none, wrong, inexact, fails, lacks, unopened };

class odd_device {
public:
    // With nodes of this operation; there is one at a time
    explicit odd_device(oddity what, ggml_op operation = GGML_OP_NONE) : device(*cpu()) {
        chosen = { what, operation, &device };
        experts.clear();
        nodes.clear();
        device.iface.init_backend = open;
        device.iface.supports_op = supports;
    }

    ggml_backend_device device;
    static inline std::set<int32_t> experts; // that were the first for any token, in any computation
    static inline std::vector<int> nodes;    // of each computation

private:
    struct choice {
        oddity what;
        ggml_op operation;
        ggml_backend_dev_t device;
    };
    static inline choice chosen = {};
    static inline ggml_status (*compute_right)(ggml_backend_t, ggml_cgraph *) = nullptr;

    static ggml_backend_dev_t cpu() { return ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0); }

    static bool supports(ggml_backend_dev_t, const ggml_tensor * op) {
        return (chosen.what != oddity::lacks || op->op != chosen.operation) && ggml_backend_dev_supports_op(cpu(), op);
    }

    static ggml_status compute(ggml_backend_t backend, ggml_cgraph * graph) {
        const ggml_status status = compute_right(backend, graph);
        nodes.push_back(ggml_graph_n_nodes(graph));
        for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
            ggml_tensor * node = ggml_graph_node(graph, i);
            if (node->op == GGML_OP_MUL_MAT_ID) {
                experts.insert(*static_cast<int32_t *>(node->src[2]->data));
            }
            if (node->op != chosen.operation || node->type != GGML_TYPE_F32) {
                continue;
            }
            if (chosen.what == oddity::fails) {
                return GGML_STATUS_FAILED;
            }
            if (chosen.what == oddity::wrong) {
                static_cast<float *>(node->data)[ggml_nelements(node) - 1] += 100.0f;
            }
            if (chosen.what == oddity::inexact) {
                static_cast<float *>(node->data)[ggml_nelements(node) - 1] *= 1.00001f;
            }
        }
        return status;
    }

    static ggml_backend_t open(ggml_backend_dev_t, const char *) {
        if (chosen.what == oddity::unopened) {
            return nullptr;
        }
        ggml_backend_t backend = ggml_backend_cpu_init();
        compute_right = backend->iface.graph_compute;
        backend->iface.graph_compute = compute;
        backend->device = chosen.device;
        return backend;
    }
};

} // namespace mesh
