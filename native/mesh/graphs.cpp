#include "graphs.h"

#include "choice.h"
#include "layout.h"
#include "names.h"
#include "operations.h"

#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <atomic>

namespace mesh {

static constexpr uint32_t FLAGS = 1 | 2 | 16; // input, output, compute: what a model's graph has

static bool is_unaligned(const void * data, ggml_type type) {
    // elements are as aligned as their size is
    const uint64_t size = ggml_type_size(type);
    return reinterpret_cast<uint64_t>(data) % (size & (~size + 1)) != 0;
}

// All data of a node lies where the backend can reach it, with room for what its kernel needs
static void check_places(const ggml_tensor * node, ggml_backend_t backend) {
    const ggml_tensor * base = node->view_src;
    if (base != nullptr &&
        (base->view_src != nullptr || base->buffer != node->buffer ||
            (node->buffer != nullptr && static_cast<char *>(base->data) + node->view_offs != node->data))) {
        throw bad_message(std::string(ggml_op_name(node->op)) + " is no view of what it names");
    }
    if (computes_nothing(node)) {
        return;
    }
    for (int i = -1; i < GGML_MAX_SRC; i++) {
        const ggml_tensor * tensor = i < 0 ? node : node->src[i];
        if (tensor == nullptr || ggml_is_empty(tensor)) {
            continue;
        }
        if (tensor->buffer == nullptr ||
            !ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(tensor->buffer))) {
            throw bad_message(std::string(ggml_op_name(node->op)) + " has no data on this device");
        }
        const auto * first = static_cast<const char *>(ggml_backend_buffer_get_base(tensor->buffer));
        const auto offset = static_cast<uint64_t>(static_cast<const char *>(tensor->data) - first);
        const uint64_t room = ggml_backend_buffer_get_size(tensor->buffer) - offset;
        // the CPU reads a factor for each pair of a row, also those that it does not turn
        const bool factors = i == 2 && (node->op == GGML_OP_ROPE || node->op == GGML_OP_ROPE_BACK);
        if (ggml_backend_buffer_get_alloc_size(tensor->buffer, tensor) > room ||
            (factors && static_cast<uint64_t>(node->ne[0]) / 2 * sizeof(float) > room)) {
            throw bad_message(std::string(ggml_op_name(node->op)) + " has no room in its buffer");
        }
    }
}

static void check_node(const ggml_tensor * node, ggml_backend_t backend) {
    check_operation(node);
    check_places(node, backend);
    if (computes_nothing(node)) {
        return;
    }
    check_overlap(node);
    if (!ggml_backend_supports_op(backend, node)) {
        throw bad_message(std::string(ggml_op_name(node->op)) + " of these types is nothing for this device");
    }
}

// A device may prepare for a graph of so few tokens to come again. With more, computing takes longer than launching
static constexpr int64_t CAPTURED_TOKENS = 128;

// What any head may have for graphs that are kept, enough for eight of 10,000 tensors, and which part of what is lent
static constexpr uint64_t LEAST_KEPT = 48 << 20;
static constexpr uint64_t LENT_TO_KEPT = 16;

// What a CPU has for any graph, beside a place for each thread: more is taken only of what is lent
static constexpr uint64_t LEAST_WORK = 64 << 20;
static constexpr uint64_t THREAD_WORK = 1 << 20; // of which ggml's tiles of matrices take half

// A CPU's kernels work in memory that ggml takes for the graph: for rows of a source in another type, for each thread,
// for each expert. It is kept until the device is closed, and is no part of any buffer.
static void check_work(const ggml_cgraph * graph, const lent_device & device) {
    if (!is_cpu(device.backend)) {
        return;
    }
    const uint64_t least = LEAST_WORK + static_cast<uint64_t>(device.threads) * THREAD_WORK;
    const uint64_t work = ggml_graph_plan(graph, device.threads, nullptr).work_size;
    if (work > std::max(least, device.limit)) {
        throw bad_message("a graph that needs " + std::to_string(work) + " bytes to work in, of " +
                          std::to_string(device.limit) + " lent");
    }
}

ggml_tensor * stored_graph::make_tensor(const wire_tensor & from, const buffers & memory) {
    ggml_type type;
    if (!type_of_number(from.type, type)) {
        throw bad_message("this release of ggml has no type " + std::to_string(from.type));
    }
    const layout bytes = check_layout(type, from.ne, from.nb);
    ggml_tensor * made_tensor = ggml_new_tensor_4d(context.get(), type, from.ne[0], from.ne[1], from.ne[2], from.ne[3]);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        made_tensor->nb[i] = from.nb[i];
    }
    if (from.buffer != 0) {
        // a copy without gaps would be in the buffer as well: no result is larger than what the head has memory for
        const place where = memory.find(from.buffer, from.offset, bytes.span);
        if (bytes.dense > memory.size_of(from.buffer) || is_unaligned(where.data, type)) {
            throw bad_message("a tensor that cannot be at its place");
        }
        made_tensor->buffer = where.buffer;
        made_tensor->data = where.data;
    }
    ggml_set_name(made_tensor, name_of(from.name).c_str());
    return made_tensor;
}

// What a tensor says about those before it, and about itself. Its own number counts from 1.
void stored_graph::link(uint32_t own, const wire_tensor & from) {
    ggml_tensor * tensor = tensors[own - 1];
    const auto named = [&](uint32_t source) {
        if (source > own) {
            throw bad_message("a tensor has one behind it as a source");
        }
        return source == 0 ? nullptr : tensors[source - 1];
    };
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        tensor->src[i] = named(from.sources[i]);
    }
    if (from.viewed == own) {
        throw bad_message("a tensor is a view of itself");
    }
    tensor->view_src = named(from.viewed);
    tensor->view_offs = from.view_offset;
    int32_t kind = from.parameters[0];
    if (!operation_of_number(from.operation, tensor->op) || !kind_from_wire(tensor->op, kind)) {
        throw bad_message(
            "this release of ggml has no operation " + std::to_string(from.operation) + ", or kind of it");
    }
    static_assert(sizeof from.parameters == sizeof tensor->op_params, "another release than the protocol is for");
    std::memcpy(tensor->op_params, from.parameters, sizeof from.parameters);
    tensor->op_params[0] = kind;
    tensor->flags = static_cast<int32_t>(from.flags & FLAGS);
}

// How many tokens pass it at least: the columns of what is multiplied with weights
static int64_t tokens_of(const ggml_cgraph * graph) {
    int64_t most = 0;
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        if (node->op == GGML_OP_MUL_MAT && node->ne[2] == 1 && node->ne[3] == 1) {
            most = std::max(most, node->ne[1]);
        }
    }
    return most;
}

stored_graph::stored_graph(const graph_body & head, reader & in, const buffers & memory, const lent_device & device) :
    number(head.uid) {
    if (head.node_count == 0 || head.node_count > head.tensor_count || head.tensor_count > GRAPH_TENSORS) {
        throw bad_message("a graph has from 1 to " + std::to_string(GRAPH_TENSORS) + " tensors");
    }
    reader nodes(in.bytes(head.node_count * sizeof(uint32_t)), head.node_count * sizeof(uint32_t));
    reader rows(in.bytes(head.tensor_count * wire_tensor::bytes), head.tensor_count * wire_tensor::bytes);
    in.end();
    const size_t size = ggml_tensor_overhead() * head.tensor_count + ggml_graph_overhead_custom(head.node_count, false);
    context.reset(ggml_init({ size, nullptr, true }));
    if (context == nullptr) {
        throw bad_message("there is no memory for a graph");
    }
    std::vector<int32_t> uses;
    for (uint32_t i = 0; i < head.tensor_count; i++) {
        const wire_tensor from = wire_tensor::take(rows);
        tensors.push_back(make_tensor(from, memory));
        link(i + 1, from);
        uses.push_back(from.uses);
    }
    made = ggml_new_graph_custom(context.get(), head.node_count, false);
    const std::vector<uint32_t> places = take_nodes(nodes, head.node_count);
    for (const uint32_t index : places) {
        check_node(tensors[index], device.backend);
        add_node(tensors[index], uses[index]);
    }
    check_work(made, device);
    is_small = tokens_of(made) <= CAPTURED_TOKENS;
    if (is_small) {
        // a device may take a graph with a number that it knows for the one that it has seen: this one is new
        static std::atomic<uint64_t> last_made{ 0 };
        made->uid = ++last_made;
    }
    correct_uses(made);
    note_results();
    guard = std::make_unique<graph_guard>(made);
}

// Places of the nodes. All other tensors are data, however they came about
std::vector<uint32_t> stored_graph::take_nodes(reader & in, uint32_t count) {
    std::vector<uint32_t> places(count);
    std::vector<bool> computed(tensors.size());
    for (uint32_t & index : places) {
        in.take(index);
        if (index >= tensors.size()) {
            throw bad_message("a node is no tensor of its graph");
        }
        if (computed[index]) {
            throw bad_message("a node is there twice");
        }
        computed[index] = true;
    }
    for (size_t i = 0; i < tensors.size(); i++) {
        ggml_tensor * tensor = tensors[i];
        if (!computed[i]) {
            tensor->view_src = nullptr;
            tensor->view_offs = 0;
            std::fill(std::begin(tensor->src), std::end(tensor->src), nullptr);
        }
        // Nothing to compute, whatever it says. A backend would still plan memory for it, or fuse it with its
        // neighbours and write where the guard does not expect it: not every fusion looks at the flag.
        if (!computed[i] || ggml_is_empty(tensor) || (tensor->flags & GGML_TENSOR_FLAG_COMPUTE) == 0) {
            tensor->op = GGML_OP_NONE;
        }
    }
    return places;
}

void stored_graph::add_node(ggml_tensor * node, int32_t uses) {
    made->nodes[made->n_nodes++] = node;
    made->use_counts[ggml_hash_insert(&made->visited_hash_set, node)] = uses;
    if (!computes_nothing(node) && node->view_src == nullptr) {
        // as llama.cpp says of such memory: what lies behind quantized tensors there is not what it was when they came
        ggml_backend_buffer_set_usage(node->buffer, GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    }
}

void stored_graph::note_results() {
    constexpr uint64_t GAP = 4096; // not worth a range of its own
    for (int i = 0; i < made->n_nodes; i++) {
        const ggml_tensor * node = made->nodes[i];
        if (!computes_nothing(node) && !ggml_backend_buffer_is_host(node->buffer)) {
            results.push_back({ { node->buffer, static_cast<uint8_t *>(node->data) },
                ggml_backend_buffer_get_alloc_size(node->buffer, node) });
        }
    }
    std::sort(results.begin(), results.end(), [](const range & a, const range & b) {
        return std::make_pair(a.first.buffer, a.first.data) < std::make_pair(b.first.buffer, b.first.data);
    });
    std::vector<range> merged;
    for (const range & one : results) {
        if (!merged.empty() && merged.back().first.buffer == one.first.buffer &&
            one.first.data <= merged.back().first.data + merged.back().size + GAP) {
            const auto end = static_cast<uint64_t>(one.first.data - merged.back().first.data) + one.size;
            merged.back().size = std::max(merged.back().size, end);
        } else {
            merged.push_back(one);
        }
    }
    results = std::move(merged);
}

void stored_graph::forget_results(recent_writes & known) const {
    for (const range & one : results) {
        known.changed(one.first, one.size);
    }
}

size_t stored_graph::bytes() const {
    return sizeof *this + ggml_get_mem_size(context.get()) + tensors.capacity() * sizeof tensors[0] +
           results.capacity() * sizeof results[0] + guard->bytes();
}

const stored_graph * graph_shelf::find(uint64_t uid) const {
    for (const auto & graph : kept) {
        if (graph->uid() == uid) {
            return graph.get();
        }
    }
    return nullptr;
}

const stored_graph & graph_shelf::put(std::unique_ptr<stored_graph> graph) {
    if (graph->uid() == 0) {
        unnamed = std::move(graph);
        return *unnamed;
    }
    kept.erase(std::remove_if(kept.begin(), kept.end(), [&](const auto & one) { return one->uid() == graph->uid(); }),
        kept.end());
    kept.push_back(std::move(graph));
    if (kept.size() > most) {
        kept.pop_front();
    }
    return *kept.back();
}

size_t graph_shelf::bytes() const {
    size_t sum = unnamed ? unnamed->bytes() : 0;
    for (const auto & graph : kept) {
        sum += graph->bytes();
    }
    return sum;
}

void graph_shelf::clear() {
    kept.clear();
    unnamed.reset();
}

void check_kept(const std::vector<graph_shelf> & shelves, const std::vector<lent_device> & devices) {
    uint64_t most = 0;
    for (const auto & device : devices) {
        most += device.limit / LENT_TO_KEPT;
    }
    most = std::max(most, LEAST_KEPT);
    uint64_t taken = 0;
    for (const auto & shelf : shelves) {
        taken += shelf.bytes();
    }
    if (taken > most) {
        throw bad_message("graphs to keep take " + std::to_string(taken) + " bytes, of " + std::to_string(most));
    }
}

} // namespace mesh
