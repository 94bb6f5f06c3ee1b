#include "client.h"
#include "names.h"

#include "ggml-impl.h"

namespace mesh {

// The tensors of one graph in the order of the wire: each after what it names.
class graph_writer {
public:
    graph_writer(const ggml_cgraph * graph, const client_device & device, const set_aside & results, uint64_t first) :
        graph(graph), device(device), results(results), first(first) {}

    void write_all(writer & out);

private:
    uint32_t add_leaf(const ggml_tensor * tensor);
    uint32_t add_node(const ggml_tensor * node);
    wire_tensor describe(const ggml_tensor * tensor) const;
    uint32_t push(const ggml_tensor * tensor, const wire_tensor & row);

    const ggml_cgraph * graph;
    const client_device & device;
    const set_aside & results;
    const uint64_t first;
    writer rows;
    uint32_t count = 0;
    std::unordered_map<const ggml_tensor *, uint32_t> numbers; // from 1
};

static uint32_t small(int64_t value) {
    if (value < 0 || value > UINT32_MAX) {
        throw bad_message("a dimension is too large");
    }
    return static_cast<uint32_t>(value);
}

wire_tensor graph_writer::describe(const ggml_tensor * tensor) const {
    wire_tensor row;
    row.type = number_of_type(tensor->type);
    if (row.type == NO_NUMBER) {
        throw bad_message(std::string("the protocol has no type ") + ggml_type_name(tensor->type));
    }
    // a graph that was split has tensors of other devices, of which only the shape is of interest
    const client_buffer * buffer = buffer_of(tensor);
    if (buffer != nullptr && buffer->device->worker == device.worker) {
        const ggml_tensor * base = base_of(tensor);
        const auto aside = results.places.find(base);
        if (aside != results.places.end()) {
            row.buffer = device.results->number;
            row.offset = first + aside->second + offset_in(buffer, tensor) - offset_in(buffer, base);
        } else {
            row.buffer = buffer->number;
            row.offset = offset_in(buffer, tensor);
        }
    }
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        row.ne[i] = small(tensor->ne[i]);
        row.nb[i] = tensor->nb[i];
    }
    set_name(row.name, tensor->name);
    return row;
}

uint32_t graph_writer::push(const ggml_tensor * tensor, const wire_tensor & row) {
    row.put(rows);
    numbers[tensor] = ++count;
    return count;
}

// What the graph does not compute is plain data, however it came about
uint32_t graph_writer::add_leaf(const ggml_tensor * tensor) {
    if (tensor == nullptr) {
        return 0;
    }
    const auto found = numbers.find(tensor);
    return found != numbers.end() ? found->second : push(tensor, describe(tensor));
}

uint32_t graph_writer::add_node(const ggml_tensor * node) {
    wire_tensor row = describe(node);
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        if (node->src[i] != node) {
            row.sources[i] = add_leaf(node->src[i]);
        }
    }
    row.viewed = add_leaf(node->view_src);
    if (numbers.count(node) != 0) {
        throw bad_message("a node comes after what needs it");
    }
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        row.sources[i] = node->src[i] == node ? count + 1 : row.sources[i]; // a cast names itself
    }
    row.view_offset = node->view_offs;
    row.operation = number_of_operation(node->op);
    row.flags = static_cast<uint32_t>(node->flags);
    std::memcpy(row.parameters, node->op_params, sizeof row.parameters);
    if (row.operation == NO_NUMBER || !kind_to_wire(node->op, row.parameters[0])) {
        throw bad_message(std::string("the protocol has no operation ") + ggml_op_name(node->op));
    }
    const size_t slot = ggml_hash_find(&graph->visited_hash_set, node);
    if (slot != GGML_HASHSET_FULL && ggml_bitset_get(graph->visited_hash_set.used, slot)) {
        row.uses = graph->use_counts[slot];
    }
    return push(node, row);
}

void graph_writer::write_all(writer & out) {
    std::vector<uint32_t> nodes;
    for (int i = 0; i < graph->n_nodes; i++) {
        nodes.push_back(add_node(graph->nodes[i]) - 1);
    }
    if (count > GRAPH_TENSORS) {
        throw bad_message("a graph has more tensors than the protocol allows");
    }
    graph_body body;
    body.uid = graph->uid;
    body.device = device.number;
    body.node_count = static_cast<uint32_t>(nodes.size());
    body.tensor_count = count;
    body.put(out);
    out.put_bytes(nodes.data(), nodes.size() * sizeof nodes[0]);
    out.put_bytes(rows.data.data(), rows.data.size());
}

bool write_graph(const ggml_cgraph * graph, const client_device & device, const set_aside & results, uint64_t first,
    writer & out, std::string & why) {
    try {
        graph_writer(graph, device, results, first).write_all(out);
        return true;
    } catch (const bad_message & error) {
        why = error.what();
        return false;
    }
}

} // namespace mesh
