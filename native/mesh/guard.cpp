#include "guard.h"

#include "choice.h"
#include "operations.h"
#include "protocol.h"
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

// So many bytes of a device are in this process at once, and from so many places of a tensor at most: with strides, a
// few indices may lie all over what a device lends
static constexpr uint64_t PLACE_BYTES = PIECE_BYTES;
static constexpr uint64_t MOST_PLACES = 4096;

// The bytes of a tensor, of which each part is asked for before it is looked at
class tensor_bytes {
public:
    // `first`: where all of them are already, or nullptr: the device has them
    tensor_bytes(ggml_backend_t backend, const ggml_tensor * tensor, const uint8_t * first) :
        backend(backend), tensor(tensor), first(first) {}

    uint64_t most() const { return first != nullptr ? UINT64_MAX : PLACE_BYTES; }

    // Behind what the device has been given; where it has to be asked, that is waited for
    const uint8_t * get(uint64_t offset, uint64_t size) {
        if (first != nullptr) {
            return first + offset;
        }
        if (++places > MOST_PLACES) {
            throw bad_message("indices that lie too far from each other");
        }
        part.resize(size);
        ggml_backend_tensor_get_async(backend, tensor, part.data(), offset, size);
        ggml_backend_synchronize(backend);
        return part.data();
    }

private:
    ggml_backend_t backend;
    const ggml_tensor * tensor;
    const uint8_t * first;
    uint64_t places = 0;
    blob part;
};

// A row, or a part of one that is as long as may be looked at at once
struct row_part {
    uint64_t offset;
    int64_t count; // elements
    uint64_t end;  // behind the last of them
};

// Which part of which row comes at this place of all
static row_part part_at(const ggml_tensor * tensor, int64_t place, int64_t most) {
    const int64_t parts = (tensor->ne[0] + most - 1) / most;
    const int64_t column = place % parts * most;
    int64_t row = place / parts;
    uint64_t offset = static_cast<uint64_t>(column) * tensor->nb[0];
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        offset += static_cast<uint64_t>(row % tensor->ne[i]) * tensor->nb[i];
        row /= tensor->ne[i];
    }
    const int64_t count = std::min(tensor->ne[0] - column, most);
    return { offset, count, offset + static_cast<uint64_t>(count - 1) * tensor->nb[0] + ggml_type_size(tensor->type) };
}

// Each element, wherever strides put it; rows that lie behind each other are looked at together
template <class Value, class Look> static void for_each(const ggml_tensor * tensor, tensor_bytes & bytes, Look look) {
    if (ggml_is_empty(tensor)) {
        return;
    }
    const uint64_t most_bytes = bytes.most();
    const uint64_t fitting = (most_bytes - sizeof(Value)) / std::max<uint64_t>(tensor->nb[0], 1);
    const int64_t most = static_cast<int64_t>(std::min(static_cast<uint64_t>(tensor->ne[0] - 1), fitting)) + 1;
    const int64_t places = (tensor->ne[0] + most - 1) / most * ggml_nrows(tensor);
    for (int64_t place = 0; place < places;) {
        const row_part first = part_at(tensor, place, most);
        int64_t next = place + 1;
        uint64_t end = first.end;
        for (; next < places; next++) {
            const row_part more = part_at(tensor, next, most);
            if (more.offset < first.offset || more.end < end || more.end - first.offset > most_bytes) {
                break;
            }
            end = more.end;
        }
        const uint8_t * data = bytes.get(first.offset, end - first.offset);
        for (; place < next; place++) {
            const row_part one = part_at(tensor, place, most);
            for (int64_t i = 0; i < one.count; i++) {
                Value value;
                const uint64_t at = one.offset - first.offset + static_cast<uint64_t>(i) * tensor->nb[0];
                std::memcpy(&value, data + at, sizeof value);
                look(value);
            }
        }
    }
}

template <class Index> static void check_indices(const ggml_tensor * tensor, tensor_bytes & bytes, int64_t limit) {
    for_each<Index>(tensor, bytes, [limit](Index index) {
        if (index < 0 || index >= limit) {
            throw bad_value("index " + std::to_string(index) + " of " + std::to_string(limit));
        }
    });
}

void graph_guard::check_values(ggml_backend_t backend, const question & one, const recent_writes & known) {
    const ggml_tensor * tensor = one.tensor;
    const auto * data = static_cast<const uint8_t *>(tensor->data);
    if (!ggml_backend_buffer_is_host(tensor->buffer)) {
        // between two parts of the graph nodes have written
        data = one.before == 0 ? known.find(tensor->buffer, data, ggml_nbytes(tensor)) : nullptr;
    }
    tensor_bytes bytes(backend, tensor, data);
    if (one.limit == 0) {
        for_each<float>(tensor, bytes, [](float value) {
            if (std::isnan(value)) {
                throw bad_value("not a number, to be sorted");
            }
        });
    } else if (tensor->type == GGML_TYPE_I64) {
        check_indices<int64_t>(tensor, bytes, one.limit);
    } else {
        check_indices<int32_t>(tensor, bytes, one.limit);
    }
}

// CUDA captures the second of two equal graphs, which costs some milliseconds, to launch the third one faster. It
// compares nodes by all their bytes, so that a name that differs in its last character makes them unequal
static ggml_status give(ggml_backend_t backend, ggml_cgraph * graph, bool repeats) {
    if (!repeats) {
        graph->nodes[0]->name[GGML_MAX_NAME - 2] ^= 1;
    }
    return ggml_backend_graph_compute_async(backend, graph);
}

ggml_status graph_guard::compute(
    ggml_backend_t backend, ggml_cgraph * graph, const recent_writes & known, bool repeats) const {
    int done = 0;
    for (const question & one : questions) {
        if (one.before > done) {
            ggml_cgraph part = ggml_graph_view(graph, done, one.before);
            const ggml_status status = give(backend, &part, repeats);
            if (status != GGML_STATUS_SUCCESS) {
                return status;
            }
            done = one.before;
        }
        check_values(backend, one, known);
    }
    if (done == 0) {
        return give(backend, graph, repeats);
    }
    ggml_cgraph rest = ggml_graph_view(graph, done, graph->n_nodes);
    return give(backend, &rest, repeats);
}

} // namespace mesh
