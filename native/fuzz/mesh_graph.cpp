// Frames of the hostile head with graphs, the indices that they need, and graphs once more.
#include "mesh_session.h"
#include "names.h"
#include "poison.h"

#include "ggml-cpp.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>

using namespace mesh;

void mesh_session::again() {
    compute_body body;
    body.uid = dice_.within(1, 12);
    valid = false; // perhaps it was never kept, or its indices are others by now
    give(body, "compute");
}

// Whatever a tensor needs, and then it
static void collect(ggml_tensor * tensor, std::vector<ggml_tensor *> & tensors) {
    if (tensor == nullptr || std::find(tensors.begin(), tensors.end(), tensor) != tensors.end()) {
        return;
    }
    for (ggml_tensor * source : tensor->src) {
        if (source != tensor) {
            collect(source, tensors);
        }
    }
    collect(tensor->view_src, tensors);
    tensors.push_back(tensor);
}

static uint32_t place_of(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & tensors) {
    const auto found = std::find(tensors.begin(), tensors.end(), tensor);
    return tensor == nullptr ? 0 : static_cast<uint32_t>(found - tensors.begin()) + 1;
}

wire_tensor mesh_session::describe(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & tensors) const {
    wire_tensor row;
    row.buffer = static_cast<uint32_t>(reinterpret_cast<uint64_t>(tensor->extra));
    row.type = number_of_type(tensor->type);
    row.offset = reinterpret_cast<uint64_t>(tensor->data);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        row.ne[i] = static_cast<uint32_t>(tensor->ne[i]);
        row.nb[i] = tensor->nb[i];
    }
    row.operation = number_of_operation(tensor->op);
    row.flags = static_cast<uint32_t>(tensor->flags) | 16;
    std::memcpy(row.parameters, tensor->op_params, sizeof row.parameters);
    kind_to_wire(tensor->op, row.parameters[0]);
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        row.sources[i] = place_of(tensor->src[i], tensors);
    }
    row.viewed = place_of(tensor->view_src, tensors);
    row.view_offset = tensor->view_offs;
    row.uses = 1;
    return row;
}

// Makes one field wrong, or another right one
void mesh_session::damage(wire_tensor & t, size_t count) {
    const auto i = dice_.below(4);
    const auto j = dice_.below(4);
    const auto another = static_cast<uint32_t>(dice_.one_in(3) ? odd() : dice_.below(count + 1));
    valid = false;
    switch (dice_.below(13)) {
    case 0:
        t.type = static_cast<uint32_t>(dice_.one_in(4) ? odd() : dice_.below(TYPE_COUNT));
        break;
    case 1:
        t.ne[i] = static_cast<uint32_t>(odd());
        break;
    case 2:
        t.nb[i] = odd();
        break;
    case 3:
        t.ne[i] = static_cast<uint32_t>(t.ne[i] + dice_.within(-2, 2));
        break;
    case 4:
        t.nb[i] += static_cast<uint64_t>(dice_.within(-8, 8) * 4);
        break;
    case 5:
        t.operation = static_cast<uint32_t>(dice_.one_in(4) ? odd() : dice_.below(OPERATION_COUNT));
        break;
    case 6:
        t.parameters[dice_.below(16)] = static_cast<int32_t>(odd());
        break;
    case 7:
        t.sources[dice_.below(10)] = another;
        break;
    case 8:
        t.sources[i] = 0;
        break;
    case 9:
        t.viewed = another;
        break;
    case 10:
        t.offset = dice_.one_in(2) ? odd() : t.offset + static_cast<uint64_t>(dice_.within(-64, 64) * 4);
        break;
    case 11:
        t.buffer = static_cast<uint32_t>(dice_.one_in(2) ? odd() : dice_.below(last_buffer + 1));
        break;
    default:
        std::swap(t.ne[i], t.ne[j]);
        if (dice_.one_in(2)) {
            std::swap(t.nb[i], t.nb[j]);
        }
    }
}

// Writes valid numbers into tensors of indices, or now and then others
void mesh_session::set_indices(const std::vector<index_tensor> & indices) {
    for (const auto & one : indices) {
        const size_t width = one.tensor->type == GGML_TYPE_I64 ? 8 : 4;
        blob bytes(ggml_nbytes(one.tensor), 0);
        const bool bad = damaging && dice_.one_in(10);
        for (size_t at = 0; at + width <= bytes.size(); at += width) {
            auto value = static_cast<int64_t>(dice_.below(static_cast<uint64_t>(one.limit)));
            if (bad && dice_.one_in(3)) {
                value = dice_.one_in(2) ? one.limit + dice_.within(0, 2) : static_cast<int64_t>(odd());
                valid = false;
            }
            std::memcpy(bytes.data() + at, &value, width);
        }
        write_body body;
        body.buffer = static_cast<uint32_t>(reinterpret_cast<uint64_t>(one.tensor->extra));
        body.offset = reinterpret_cast<uint64_t>(one.tensor->data);
        const bool before = valid;
        valid = true;
        give(body, "indices", bytes);
        valid = valid && before;
    }
}

// How far kernels read: the CPU's ROPE takes a factor for each pair of a row, also those that it does not turn
static uint64_t reach(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & nodes) {
    uint64_t bytes = ggml_nbytes(tensor);
    for (const ggml_tensor * node : nodes) {
        if (node->op == GGML_OP_ROPE && node->src[2] == tensor) {
            bytes = std::max<uint64_t>(bytes, static_cast<uint64_t>(node->ne[0]) / 2 * sizeof(float));
        }
    }
    return bytes;
}

// Some operations, each tensor with memory of its own and a gap behind it. false: there is no room
bool mesh_session::make_graph(const buffer & where, std::vector<ggml_tensor *> & tensors,
    std::vector<ggml_tensor *> & nodes, std::vector<index_tensor> & indices, ranges & gaps) {
    ggml_cgraph * made = ggml_new_graph_custom(ctx, 128, false);
    ggml_tensor * before = nullptr;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        const auto kind = static_cast<int>(dice_.below(static_cast<uint64_t>(n_operations())));
        before = make_operation(ctx, dice_, kind, before, indices);
        ggml_build_forward_expand(made, before);
    }
    for (int i = 0; i < ggml_graph_n_nodes(made); i++) {
        nodes.push_back(ggml_graph_node(made, i));
        collect(nodes.back(), tensors);
    }
    uint64_t used = 0;
    for (ggml_tensor * tensor : tensors) {
        tensor->extra = reinterpret_cast<void *>(static_cast<uint64_t>(where.number));
        if (tensor->view_src != nullptr) {
            tensor->data = static_cast<char *>(tensor->view_src->data) + tensor->view_offs;
            continue;
        }
        tensor->data = reinterpret_cast<void *>(used);
        const uint64_t end = used + reach(tensor, nodes);
        used = GGML_PAD(end, 32) + 64;
        gaps.emplace_back(end, used - end);
    }
    return used <= where.size;
}

void mesh_session::graph() {
    const buffer where = some_buffer();
    blob room(ggml_tensor_overhead() * 128 + ggml_graph_overhead_custom(128, false));
    ggml_context_ptr own(ggml_init({ room.size(), room.data(), true }));
    ctx = own.get();
    std::vector<ggml_tensor *> tensors;
    std::vector<ggml_tensor *> nodes;
    std::vector<index_tensor> indices;
    ranges gaps;
    if (!make_graph(where, tensors, nodes, indices, gaps)) {
        return;
    }
    set_indices(indices);
    graph_body body;
    body.uid = dice_.below(12);
    body.node_count = static_cast<uint32_t>(nodes.size());
    body.tensor_count = static_cast<uint32_t>(tensors.size());
    std::vector<uint32_t> places;
    for (const ggml_tensor * node : nodes) {
        places.push_back(place_of(node, tensors) - 1);
    }
    std::vector<wire_tensor> rows;
    for (const ggml_tensor * tensor : tensors) {
        rows.push_back(describe(tensor, tensors));
    }
    for (int64_t n = damaging && dice_.one_in(2) ? dice_.within(1, 3) : 0; n > 0; n--) {
        damage(rows[dice_.below(rows.size())], rows.size());
        if (dice_.one_in(12)) {
            places[dice_.below(places.size())] =
                static_cast<uint32_t>(dice_.one_in(2) ? odd() : dice_.below(rows.size()));
        }
    }
    writer out;
    out.put_bytes(places.data(), places.size() * sizeof places[0]);
    for (const auto & row : rows) {
        row.put(out);
    }
    totals.graphs++;
    // only an undamaged graph keeps to its tensors
    if (!why.empty()) {
        return;
    }
    const uint8_t * base = worker.held().find(where.number, 0, 0).data;
    for (const auto & gap : valid ? gaps : ranges()) {
        ASAN_POISON_MEMORY_REGION(base + gap.first, gap.second);
    }
    give(body, "graph", out.data);
    ASAN_UNPOISON_MEMORY_REGION(base, where.size);
}
