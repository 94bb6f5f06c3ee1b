// Graphs from the wire, made into ggml's and checked node by node, and those that a device keeps.
#pragma once

#include "buffers.h"
#include "guard.h"

#include "ggml-cpp.h"

#include <deque>
#include <memory>

namespace mesh {

class stored_graph {
public:
    // Throws bad_message: nothing of it may be computed then
    stored_graph(const graph_body & head, reader & in, const buffers & memory, const lent_device & device);

    uint64_t uid() const { return number; }
    // Of memory, beside what lies in buffers
    size_t bytes() const;
    uint32_t nodes() const { return static_cast<uint32_t>(ggml_graph_n_nodes(made)); }
    ggml_status compute(ggml_backend_t backend, const recent_writes & known) const {
        return guard->compute(backend, made, known, is_small);
    }
    // Nothing of what it writes is known any more
    void forget_results(recent_writes & known) const;

private:
    ggml_tensor * make_tensor(const wire_tensor & from, const buffers & memory);
    void link(uint32_t number, const wire_tensor & from);
    std::vector<uint32_t> take_nodes(reader & in, uint32_t count);
    void add_node(ggml_tensor * node, int32_t uses);
    void note_results();

    uint64_t number;
    ggml_context_ptr context;
    std::vector<ggml_tensor *> tensors;
    ggml_cgraph * made = nullptr;
    bool is_small = true; // so few tokens that launching its kernels takes longer than computing them may
    struct range {
        place first;
        uint64_t size;
    };
    std::vector<range> results; // that nodes write, in memory that this process cannot read
    std::unique_ptr<graph_guard> guard;
};

// The graphs of one device, oldest first
class graph_shelf {
public:
    // The graph that was put here, or nullptr
    const stored_graph * find(uint64_t uid) const;
    // From now on as many are kept as a model split by tensors has
    void expect_sums() { most = SUM_GRAPHS; }
    // Keeps it; with the uid 0 until the next one comes
    const stored_graph & put(std::unique_ptr<stored_graph> graph);
    // Of memory that all of them take
    size_t bytes() const;
    void clear();

private:
    size_t most = STORED_GRAPHS;
    std::deque<std::unique_ptr<stored_graph>> kept;
    std::unique_ptr<stored_graph> unnamed;
};

// What the graphs of all devices take is in no buffer. Throws bad_message where it is more than a head may have
void check_kept(const std::vector<graph_shelf> & shelves, const std::vector<lent_device> & devices);

} // namespace mesh
