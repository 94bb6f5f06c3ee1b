// Kernels follow what they find in some tensors: rows to get or set, experts, states. They abort, or leave their
// buffers, where such an index is out of range, and the CPU's sorting does where a value is no number. A guard asks for
// that while a graph is computed: of data that is there before, at its beginning; of what the graph computes itself,
// between two parts of it.
#pragma once

#include "recent_writes.h"

#include "ggml-backend.h"

#include <vector>

namespace mesh {

class graph_guard {
public:
    explicit graph_guard(const ggml_cgraph * graph);

    // Gives the device the graph that this was made for; one that works by itself may not have done it yet. What is
    // known of its memory is not asked for. Throws bad_message where an index leads nowhere.
    // `repeats`: false: the device must not prepare for the same graph again
    ggml_status compute(
        ggml_backend_t backend, ggml_cgraph * graph, const recent_writes & known = {}, bool repeats = true) const;

    // Into how many parts the graph is cut
    size_t parts() const;

    // Of memory
    size_t bytes() const { return questions.capacity() * sizeof(question); }

private:
    struct question {
        int before; // the node that must not begin without an answer
        const ggml_tensor * tensor;
        int64_t limit; // its values are from 0 to below this; 0: they are numbers
    };
    static void check_values(ggml_backend_t backend, const question & one, const recent_writes & known);
    // `writer`: the node that writes the tensor last before this one, or -1
    void ask(const ggml_cgraph * graph, int writer, int node, const ggml_tensor * tensor, int64_t limit);

    std::vector<question> questions; // in order
};

} // namespace mesh
