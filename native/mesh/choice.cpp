#include "choice.h"

#include "shapes.h"

#include <algorithm>
#include <vector>

namespace mesh {

// Threads that look for the best score together, where there are most of them (AMD). With fewer experts some threads
// have none, and stand for one that does not exist if no score is a number.
static constexpr int64_t THREADS = 64;

// More than a graph can have; what a head says may be anything
static constexpr int32_t MOST_USES = 1 << 24;

// In places behind the sort. What the kernel takes for the weights is the last node of its pattern: GET_ROWS, or the
// RESHAPE behind a softmax or behind the division by their sum, or the SCALE behind one of them.
static constexpr struct {
    int behind;
    ggml_op op;
} WEIGHTS[] = {
    { 2, GGML_OP_GET_ROWS },
    { 3, GGML_OP_SCALE },
    { 5, GGML_OP_RESHAPE },
    { 7, GGML_OP_RESHAPE },
    { 8, GGML_OP_SCALE },
};

static bool is_source(const ggml_tensor * node, const ggml_tensor * tensor) {
    return std::find(std::begin(node->src), std::end(node->src), tensor) != std::end(node->src);
}

// The node at this place, or nullptr
static const ggml_tensor * node_at(const ggml_cgraph * graph, int place) {
    return place >= 0 && place < graph->n_nodes ? graph->nodes[place] : nullptr;
}

// The first places of each row
static bool are_first(const ggml_tensor * places, const ggml_tensor * sorted) {
    return places->type == GGML_TYPE_I32 && places->data == sorted->data && is_row(places) &&
           places->ne[0] <= sorted->ne[0] && places->nb[1] == sorted->nb[1] &&
           has_shape(places, places->ne[0], sorted->ne[1], 1, 1);
}

// The scores that are sorted: the kernel takes a bias for a row of floats
static bool are_scores(const ggml_cgraph * graph, int sort) {
    const ggml_tensor * scores = graph->nodes[sort]->src[0];
    const bool biased = scores->op == GGML_OP_ADD && scores == node_at(graph, sort - 1);
    if (biased) {
        const ggml_tensor * bias = scores->src[1];
        if (!is_f32(bias) || !is_flat(bias) || !has_shape(bias, scores->ne[0], 1, 1, 1)) {
            return false;
        }
    }
    // a softmax makes all or none of them numbers, so that the first expert is chosen of those that are left
    return scores->ne[0] >= THREADS || !(biased || scores->op == GGML_OP_UNARY || scores->op == GGML_OP_SQRT);
}

static bool is_choice(const ggml_cgraph * graph, int sort) {
    const ggml_tensor * sorted = graph->nodes[sort];
    const ggml_tensor * places = only_places(graph, sort);
    if (places == nullptr || !has_shape(sorted, sorted->ne[0], sorted->ne[1], 1, 1) || !are_first(places, sorted) ||
        !are_scores(graph, sort)) {
        return false;
    }
    return std::all_of(std::begin(WEIGHTS), std::end(WEIGHTS), [&](const auto & one) {
        const ggml_tensor * weights = node_at(graph, sort + one.behind);
        const bool linked =
            weights != nullptr && weights->op == one.op && is_source(weights, graph->nodes[sort + one.behind - 1]);
        return !linked || has_shape(weights, 1, places->ne[0], sorted->ne[1], 1);
    });
}

// By the nodes' slots in the graph's table
static std::vector<int32_t> count_uses(const ggml_cgraph * graph) {
    std::vector<int32_t> counts(graph->visited_hash_set.size);
    const auto count = [&](const ggml_tensor * used) {
        const size_t slot = used == nullptr ? GGML_HASHSET_FULL : ggml_hash_find(&graph->visited_hash_set, used);
        if (slot != GGML_HASHSET_FULL && ggml_bitset_get(graph->visited_hash_set.used, slot)) {
            counts[slot]++; // a node, and no data
        }
    };
    for (int i = 0; i < graph->n_nodes; i++) {
        const ggml_tensor * node = graph->nodes[i];
        std::for_each(std::begin(node->src), std::end(node->src), count);
        count(is_source(node, node->view_src) ? nullptr : node->view_src);
    }
    return counts;
}

const ggml_tensor * only_places(const ggml_cgraph * graph, int sort) {
    const ggml_tensor * next = node_at(graph, sort + 1);
    const bool fits = graph->nodes[sort]->op == GGML_OP_ARGSORT && next != nullptr && next->op == GGML_OP_VIEW &&
                      next->src[0] == graph->nodes[sort] && ggml_node_get_use_count(graph, sort) == 1;
    return fits ? next : nullptr;
}

void correct_uses(ggml_cgraph * graph) {
    std::vector<int32_t> counts = count_uses(graph);
    for (int i = 0; i < graph->n_nodes; i++) {
        const size_t slot = ggml_hash_find(&graph->visited_hash_set, graph->nodes[i]);
        graph->use_counts[slot] = std::max(std::min(graph->use_counts[slot], MOST_USES), counts[slot]);
    }
    for (int i = 0; i < graph->n_nodes; i++) {
        if (graph->nodes[i]->op == GGML_OP_ARGSORT && !is_choice(graph, i)) {
            graph->use_counts[ggml_hash_find(&graph->visited_hash_set, graph->nodes[i])]++;
        }
    }
}

} // namespace mesh
