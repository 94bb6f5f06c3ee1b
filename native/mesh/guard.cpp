#include "guard.h"

#include "choice.h"
#include "operations.h"
#include "wire.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace mesh {

// What a node writes; of one that is not computed: nothing
struct written_range {
    ggml_backend_buffer_t buffer = nullptr;
    uint64_t first = 0;
    uint64_t end = 0;
};

// A tensor of indices that a node follows, and what they stay below; nullptr: it follows none
struct followed {
    const ggml_tensor * indices;
    int64_t limit;
};

static followed followed_by(const ggml_tensor * node) {
    switch (node->op) {
    case GGML_OP_GET_ROWS:
        return { node->src[1], node->src[0]->ne[1] };
    case GGML_OP_SET_ROWS:
        return { node->src[1], node->ne[1] };
    case GGML_OP_MUL_MAT_ID:
        return { node->src[2], node->src[0]->ne[2] };
    case GGML_OP_ADD_ID:
        return { node->src[2], node->src[1]->ne[1] };
    case GGML_OP_SSM_SCAN:
        return { node->src[6], node->src[0]->ne[3] };
    default:
        return { nullptr, 0 };
    }
}

// Its result are places in the rows of its source
static bool sorts(const ggml_tensor * node) {
    return std::string(ggml_op_name(node->op)) == "TOP_K" || node->op == GGML_OP_ARGSORT;
}

// Backends pass over a node without this flag: llama.cpp leaves it out for samplers of answers that have no token in a
// step, whose indices it does not write either. What such a node would have written is not there.
static bool is_computed(const ggml_tensor * node) {
    return !computes_nothing(node) && (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
}

static uint64_t start_of(const ggml_tensor * tensor) {
    return reinterpret_cast<uint64_t>(tensor->data);
}

static uint64_t end_of(const ggml_tensor * tensor) {
    return start_of(tensor) + ggml_nbytes(tensor);
}

// Some kernels also write behind their result, where they work: the device counts that room as the tensor's
static written_range written_by(const ggml_tensor * node) {
    if (!is_computed(node)) {
        return {};
    }
    return { node->buffer, start_of(node), start_of(node) + ggml_backend_buffer_get_alloc_size(node->buffer, node) };
}

// The last node before this one that writes where the tensor is; -1: none, it is there before the graph begins
static int last_writer(const std::vector<written_range> & written, int node, const ggml_tensor * tensor) {
    for (int i = node - 1; i >= 0; i--) {
        const written_range & one = written[static_cast<size_t>(i)];
        if (one.buffer == tensor->buffer && one.first < end_of(tensor) && start_of(tensor) < one.end) {
            return i;
        }
    }
    return -1;
}

// Whether this tensor, which the writer writes last, is all in what a sort has really written
static bool are_places(const ggml_cgraph * graph, int writer, const ggml_tensor * tensor) {
    const ggml_tensor * source = graph->nodes[writer];
    if (!sorts(source) || tensor->type != source->type) {
        return false;
    }
    const ggml_tensor * only = only_places(graph, writer);
    return only != nullptr ? tensor == only
                           : start_of(tensor) >= start_of(source) && end_of(tensor) <= end_of(source) &&
                                 (start_of(tensor) - start_of(source)) % sizeof(int32_t) == 0;
}

graph_guard::graph_guard(const ggml_cgraph * graph) {
    std::vector<written_range> written;
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        written.push_back(written_by(node));
        if (!is_computed(node)) {
            continue;
        }
        const followed next = followed_by(node);
        if (next.indices != nullptr) {
            ask(graph, last_writer(written, i, next.indices), i, next.indices, next.limit);
        }
        if (sorts(node) && ggml_backend_buffer_is_host(node->buffer)) {
            ask(graph, last_writer(written, i, node->src[0]), i, node->src[0], 0);
        }
    }
}

// As early as all is there, in as few parts as that allows: where the graph is cut already, else before this node
void graph_guard::ask(const ggml_cgraph * graph, int writer, int node, const ggml_tensor * tensor, int64_t limit) {
    if (writer >= 0 && limit > 0 && are_places(graph, writer, tensor) && graph->nodes[writer]->src[0]->ne[0] <= limit) {
        return; // in rows that are no longer than the limit
    }
    const int cut = questions.empty() ? 0 : questions.back().before;
    const int before = writer < cut ? (writer < 0 ? 0 : cut) : node;
    for (const question & known : questions) {
        if (known.before == before && known.tensor == tensor && known.limit == limit) {
            return; // for many layers it is the same one
        }
    }
    questions.push_back({ before, tensor, limit });
    std::stable_sort(
        questions.begin(), questions.end(), [](const question & a, const question & b) { return a.before < b.before; });
}

size_t graph_guard::parts() const {
    size_t count = 1;
    for (size_t i = 0; i < questions.size(); i++) {
        count += questions[i].before > (i == 0 ? 0 : questions[i - 1].before) ? 1 : 0;
    }
    return count;
}

// Each element, wherever strides put it
template <class Value, class Look> static void for_each(const ggml_tensor * tensor, const uint8_t * data, Look look) {
    for (int64_t i3 = 0; i3 < tensor->ne[3]; i3++) {
        for (int64_t i2 = 0; i2 < tensor->ne[2]; i2++) {
            for (int64_t i1 = 0; i1 < tensor->ne[1]; i1++) {
                const uint8_t * row = data + i3 * static_cast<int64_t>(tensor->nb[3]) +
                                      i2 * static_cast<int64_t>(tensor->nb[2]) +
                                      i1 * static_cast<int64_t>(tensor->nb[1]);
                for (int64_t i0 = 0; i0 < tensor->ne[0]; i0++) {
                    Value value;
                    std::memcpy(&value, row + i0 * static_cast<int64_t>(tensor->nb[0]), sizeof value);
                    look(value);
                }
            }
        }
    }
}

template <class Index> static void check_indices(const ggml_tensor * tensor, const uint8_t * data, int64_t limit) {
    for_each<Index>(tensor, data, [limit](Index index) {
        if (index < 0 || index >= limit) {
            throw bad_message("index " + std::to_string(index) + " of " + std::to_string(limit));
        }
    });
}

// Behind what the device has been given; where it has to be asked, that is waited for
static blob read_values(ggml_backend_t backend, const ggml_tensor * tensor) {
    blob values(ggml_nbytes(tensor));
    ggml_backend_tensor_get_async(backend, tensor, values.data(), 0, values.size());
    ggml_backend_synchronize(backend);
    return values;
}

void graph_guard::check_values(ggml_backend_t backend, const question & one, const recent_writes & known) {
    const ggml_tensor * tensor = one.tensor;
    const auto * data = static_cast<const uint8_t *>(tensor->data);
    blob values;
    if (!ggml_backend_buffer_is_host(tensor->buffer)) {
        // between two parts of the graph nodes have written
        data = one.before == 0 ? known.find(tensor->buffer, data, ggml_nbytes(tensor)) : nullptr;
        if (data == nullptr) {
            values = read_values(backend, tensor);
            data = values.data();
        }
    }
    if (one.limit == 0) {
        for_each<float>(tensor, data, [](float value) {
            if (std::isnan(value)) {
                throw bad_message("a value to be sorted is not a number");
            }
        });
    } else if (tensor->type == GGML_TYPE_I64) {
        check_indices<int64_t>(tensor, data, one.limit);
    } else {
        check_indices<int32_t>(tensor, data, one.limit);
    }
}

ggml_status graph_guard::compute(ggml_backend_t backend, ggml_cgraph * graph, const recent_writes & known) const {
    int done = 0;
    for (const question & one : questions) {
        if (one.before > done) {
            ggml_cgraph part = ggml_graph_view(graph, done, one.before);
            const ggml_status status = ggml_backend_graph_compute_async(backend, &part);
            if (status != GGML_STATUS_SUCCESS) {
                return status;
            }
            done = one.before;
        }
        check_values(backend, one, known);
    }
    if (done == 0) {
        return ggml_backend_graph_compute_async(backend, graph);
    }
    ggml_cgraph rest = ggml_graph_view(graph, done, graph->n_nodes);
    return ggml_backend_graph_compute_async(backend, &rest);
}

} // namespace mesh
