// Frames of the hostile client with operations: graphs, the indices that they need, and what is supported.
#include "operations.h"
#include "rpc_session.h"
#include "rpc_wire.h"
#include "supported-ops.h"

#include "ggml-cpp.h"
#include "ggml-impl.h"

#include <cstring>

// Frames that give index tensors valid numbers, or now and then others
void rpc_session::indices_of(const std::vector<index_tensor> & tensors) {
    for (const auto & index : tensors) {
        const bool wide = index.tensor->type == GGML_TYPE_I64;
        std::vector<uint8_t> message(sizeof(rpc_msg_set_tensor_header) + ggml_nbytes(index.tensor));
        rpc_msg_set_tensor_header header = {};
        header.tensor.buffer = (uint64_t) index.tensor->buffer;
        header.tensor.data = (uint64_t) index.tensor->data;
        header.tensor.type = index.tensor->type;
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            header.tensor.ne[i] = (uint32_t) index.tensor->ne[i];
            header.tensor.nb[i] = (uint32_t) index.tensor->nb[i];
        }
        memcpy(message.data(), &header, sizeof(header));
        const bool bad = damaging && dice_.one_in(10);
        for (int64_t i = 0; i < ggml_nelements(index.tensor); i++) {
            int64_t value = (int64_t) dice_.below((uint64_t) index.limit);
            if (bad && dice_.one_in(3)) {
                value = dice_.one_in(2) ? index.limit + dice_.within(0, 2) : (int64_t) odd();
                valid = false;
            }
            memcpy(message.data() + sizeof(header) + i * (wide ? 8 : 4), &value, wide ? 8 : 4);
        }
        later.push_back(
            { packed(RPC_CMD_SET_TENSOR, message.size(), message.data(), message.size()), true, "indices", {} });
    }
}

void rpc_session::graph() {
    const buffer b = some_buffer();
    std::vector<uint8_t> memory(ggml_tensor_overhead() * 128 + ggml_graph_overhead_custom(128, false));
    ggml_context_ptr ctx{ ggml_init({ memory.size(), memory.data(), true }) };
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 128, false);
    std::vector<index_tensor> indices;
    ggml_tensor * last = nullptr;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        last = make_operation(ctx.get(), dice_, (int) dice_.below((uint64_t) n_operations()), last, indices);
        ggml_build_forward_expand(graph, last);
    }
    std::vector<ggml_tensor *> tensors;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        collect(ggml_graph_node(graph, i), tensors);
    }
    // each has memory of its own, with a gap behind it
    std::vector<std::pair<uint64_t, uint64_t>> gaps;
    uint64_t used = 0;
    for (ggml_tensor * t : tensors) {
        t->buffer = (ggml_backend_buffer_t) b.handle;
        if (t->view_src == nullptr) {
            t->data = (void *) (b.base + used);
            const uint64_t end = used + ggml_nbytes(t);
            used = GGML_PAD(end, 32) + 64;
            gaps.push_back({ b.memory + end, used - end });
        } else {
            t->data = (char *) t->view_src->data + t->view_offs;
        }
    }
    if (used > b.size) {
        return query();
    }
    std::vector<rpc_tensor> wire;
    std::vector<uint64_t> ids, nodes;
    for (ggml_tensor * t : tensors) {
        wire.push_back(wire_tensor(t));
        ids.push_back(wire.back().id);
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        nodes.push_back((uint64_t) ggml_graph_node(graph, i));
    }
    indices_of(indices);
    const bool bad = damaging && dice_.one_in(2);
    uint32_t head[2] = { 0, (uint32_t) nodes.size() };
    uint32_t n_tensors = (uint32_t) wire.size();
    if (bad) {
        valid = false;
        for (int64_t n = dice_.within(1, 3); n > 0; n--) {
            switch (dice_.below(12)) {
            case 0:
                nodes[dice_.below(nodes.size())] = dice_.one_in(2) ? odd() : ids[dice_.below(ids.size())];
                break;
            case 1:
                (dice_.one_in(3) ? head[0] : dice_.one_in(2) ? head[1] : n_tensors) = (uint32_t) odd();
                break;
            default:
                damage_tensor(dice_, wire[dice_.below(wire.size())], odd(), ids);
                break;
            }
        }
    }
    std::vector<uint8_t> message;
    auto add = [&](const void * p, size_t n) {
        message.insert(message.end(), (const uint8_t *) p, (const uint8_t *) p + n);
    };
    add(head, sizeof(head));
    add(nodes.data(), nodes.size() * sizeof(uint64_t));
    add(&n_tensors, sizeof(n_tensors));
    add(wire.data(), wire.size() * sizeof(rpc_tensor));
    totals.graphs++;
    // the indices go first; only an undamaged graph keeps to its tensors
    const decltype(gaps) none;
    later.push_back({ packed(RPC_CMD_GRAPH_COMPUTE, message.size(), message.data(), message.size()), valid, "graph",
        valid ? gaps : none });
    next_frame();
}

// Asks whether some operations are supported
void rpc_session::ask() {
    if (!extended) {
        return query();
    }
    std::vector<uint8_t> memory(ggml_tensor_overhead() * 128), entries, tensors;
    ggml_context_ptr ctx{ ggml_init({ memory.size(), memory.data(), true }) };
    rpc_op_header header = { 0, (uint32_t) dice_.within(1, 4), 0, 0 };
    auto add = [](std::vector<uint8_t> & to, const void * p, size_t n) {
        to.insert(to.end(), (const uint8_t *) p, (const uint8_t *) p + n);
    };
    std::vector<index_tensor> indices;
    for (uint32_t n = 0; n < header.n_ops; n++) {
        const ggml_tensor * op =
            make_operation(ctx.get(), dice_, (int) dice_.below((uint64_t) n_operations()), nullptr, indices);
        rpc_op_entry entry = { (uint32_t) op->op, 0, {} };
        memcpy(entry.op_params, op->op_params, sizeof(entry.op_params));
        for (int i = -1; i < GGML_MAX_SRC; i++) {
            const ggml_tensor * t = i < 0 ? op : op->src[i];
            if (t == nullptr) {
                continue;
            }
            const rpc_tensor on_wire = wire_tensor(t);
            rpc_op_tensor described = { on_wire.type, {}, {} };
            memcpy(described.ne, on_wire.ne, sizeof(described.ne));
            memcpy(described.nb, on_wire.nb, sizeof(described.nb));
            add(tensors, &described, sizeof(described));
            entry.sources |= i < 0 ? 0 : 1u << i;
            header.n_tensors++;
        }
        add(entries, &entry, sizeof(entry));
    }
    std::vector<uint8_t> message;
    add(message, &header, sizeof(header));
    add(message, entries.data(), entries.size());
    add(message, tensors.data(), tensors.size());
    for (int64_t n = dice_.within(1, 3); n > 0 && hurt(); n--) {
        damage(message.data(), message.size());
        valid = false;
    }
    frame(RPC_CMD_SUPPORTED_OPS, message.data(), message.size(), "supported_ops", header.n_ops);
}
