#include "device_speed.h"

#include "trial_words.h"
#include "used_processors.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <thread>

namespace mesh {

typedef std::chrono::steady_clock steady;

static constexpr int64_t MOST_LAYERS = 32;
static constexpr size_t MOST_WORDS = 64;
static constexpr int64_t MOST_CELLS = 1 << 15;
static constexpr uint64_t WEIGHT_BYTES = 256 << 20; // of all layers: more than caches of processors hold
static constexpr uint64_t ALL_BYTES = 1 << 30;      // with what goes in and comes out
static constexpr int64_t TOKENS[] = { 1, 4, 32, 128, 512 };
static constexpr auto ENOUGH = std::chrono::milliseconds(60); // of runs for one figure
static constexpr size_t LEAST_RUNS = 4;                       // unless they take too long
static constexpr size_t MOST_RUNS = 24;                       // where each waits for a rest
static constexpr auto REST = std::chrono::milliseconds(5);    // of a processor before each run
static constexpr int64_t FILLED_ROWS = 16;                    // the others repeat them: values do not matter

struct timed_word {
    const trial_operation * operation;
    trial_numbers asked;
    bool is_matrix = false;
    int64_t rows = 0;
    int64_t experts = 1;
    int64_t used = 1;
    int64_t cells = 0; // 0: the usual number

    double work() const {
        if (is_matrix) {
            return 2.0 * static_cast<double>(asked.n[0]) * static_cast<double>(rows * used);
        }
        // attention: each head reads a key and a value of each cell
        return cells == 0 ? 0 : 2.0 * static_cast<double>((asked.n[0] + asked.n[1]) * asked.n[2] * cells);
    }
};

static timed_word parse_word(const std::string & word) {
    timed_word found;
    const auto wrong = [&word] { return std::invalid_argument("`" + word + "` is no operation that can be timed"); };
    std::vector<std::string> parts = split_word(word);
    found.is_matrix = parts[0] == "mul_mat" || parts[0] == "mul_mat_id";
    if (found.is_matrix) { // the rows are no matter of a trial
        if (parts.size() < 4 || !parse_number(parts[3], found.rows)) {
            throw wrong();
        }
        parts.erase(parts.begin() + 3);
    } else if (parts[0] == "flash_attn") {
        if (parts.size() < 2 || !parse_number(parts.back(), found.cells) || found.cells > MOST_CELLS) {
            throw wrong();
        }
        parts.pop_back();
    }
    found.operation = parse_trial(join_word(parts), found.asked);
    if (found.operation == nullptr) {
        throw wrong();
    }
    if (parts[0] == "mul_mat_id") {
        found.experts = found.asked.n[1];
        found.used = std::min(found.asked.n[2], found.experts);
    }
    return found;
}

timed_layers parse_timed(const std::string & text) {
    const size_t equals = text.find('=');
    timed_layers found = { 0, {} };
    if (equals == std::string::npos || !parse_number(text.substr(0, equals), found.layers) ||
        found.layers > MOST_LAYERS) {
        throw std::invalid_argument("`" + text + "` does not begin with 1 to 32 layers and `=`");
    }
    found.words = split_word(text.substr(equals + 1), ',');
    if (found.words.size() > MOST_WORDS) {
        throw std::invalid_argument("a layer has at most 64 operations");
    }
    for (const auto & word : found.words) {
        parse_word(word);
    }
    return found;
}

// Matrices of some layers, on the device
class layer_weights {
public:
    layer_weights(ggml_backend_t backend, const std::vector<timed_word> & words, int64_t layers) {
        context.reset(
            ggml_init({ words.size() * static_cast<size_t>(layers) * ggml_tensor_overhead(), nullptr, true }));
        uint64_t bytes = 0;
        for (int64_t layer = 0; layer < layers; layer++) {
            for (const auto & word : words) {
                ggml_tensor * made = word.is_matrix ? ggml_new_tensor_3d(context.get(), word.asked.types[0],
                                                          word.asked.n[0], word.rows, word.experts)
                                                    : nullptr;
                matrices.push_back(made);
                bytes += made != nullptr ? ggml_nbytes(made) : 0;
            }
            count = layer + 1;
            if (bytes + bytes / static_cast<uint64_t>(count) > WEIGHT_BYTES) {
                break; // one more would be too much
            }
        }
        if (bytes > 0 && bytes <= ALL_BYTES) {
            buffer.reset(ggml_backend_alloc_ctx_tensors(context.get(), backend));
        }
        has_memory = bytes == 0 || buffer != nullptr;
        for (ggml_tensor * matrix : matrices) {
            if (has_memory && matrix != nullptr) {
                fill(matrix);
            }
        }
    }

    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
    std::vector<ggml_tensor *> matrices; // of each word of each layer, nullptr where it has none
    int64_t count = 0;                   // of layers
    bool has_memory = false;

private:
    void fill(ggml_tensor * matrix) {
        const std::vector<uint8_t> & some = rows(matrix->type, matrix->ne[0]);
        const size_t bytes = ggml_nbytes(matrix);
        for (size_t at = 0; at < bytes; at += some.size()) {
            ggml_backend_tensor_set(matrix, some.data(), at, std::min(some.size(), bytes - at));
        }
    }

    // Made once for all matrices alike: to quantize takes longer than to compute
    const std::vector<uint8_t> & rows(ggml_type type, int64_t columns) {
        std::vector<uint8_t> & made = filled[{ type, columns }];
        if (made.empty()) {
            std::vector<float> dense(static_cast<size_t>(columns * FILLED_ROWS));
            uint64_t x = 1;
            for (auto & value : dense) {
                x = x * 6364136223846793005 + 1442695040888963407;
                value = static_cast<float>(x >> 40) / 8388608.0f - 1.0f;
            }
            const std::vector<float> importance(static_cast<size_t>(columns), 1.0f);
            made.resize(ggml_row_size(type, columns) * FILLED_ROWS);
            ggml_quantize_chunk(type, dense.data(), made.data(), 0, FILLED_ROWS, columns, importance.data());
        }
        return made;
    }

    std::map<std::pair<ggml_type, int64_t>, std::vector<uint8_t>> filled;
};

// The graph of some layers for so many tokens at once
class timed_graph {
public:
    timed_graph(const std::vector<timed_word> & words, const layer_weights & weights, int64_t layers, int64_t tokens) :
        graph(tokens, 64 * words.size() * static_cast<size_t>(layers) + 64) {
        for (int64_t layer = 0; layer < layers; layer++) {
            for (size_t i = 0; i < words.size(); i++) {
                add(words[i], weights.matrices[static_cast<size_t>(layer) * words.size() + i], layer);
            }
        }
    }

    // false: there is no memory for it, or the device does not compute all of it
    bool prepare(ggml_backend_t backend) {
        if (graph.bytes() > ALL_BYTES) {
            return false;
        }
        for (int i = 0; i < ggml_graph_n_nodes(graph.graph()); i++) {
            if (!ggml_backend_supports_op(backend, ggml_graph_node(graph.graph(), i))) {
                return false;
            }
        }
        buffer.reset(ggml_backend_alloc_ctx_tensors(graph.context.get(), backend));
        if (buffer != nullptr) {
            graph.fill();
        }
        return buffer != nullptr;
    }

    // Each time with other experts: those of the last run may still be in a processor's caches
    bool run(ggml_backend_t backend, steady::duration & took) {
        for (const auto & one : routes) {
            std::vector<int32_t> ids(static_cast<size_t>(ggml_nelements(one.ids)));
            for (size_t i = 0; i < ids.size(); i++) {
                ids[i] = one.expert(static_cast<int64_t>(i), runs);
            }
            ggml_backend_tensor_set(one.ids, ids.data(), 0, ids.size() * sizeof(int32_t));
        }
        runs++;
        const auto began = steady::now();
        const bool done = ggml_backend_graph_compute(backend, graph.graph()) == GGML_STATUS_SUCCESS;
        took = steady::now() - began;
        return done;
    }

private:
    // Which experts of a layer the tokens pass
    struct route {
        ggml_tensor * ids;
        int64_t layer;
        int64_t used;
        int64_t experts;

        // `i` counts those of the first token, then those of the second
        int32_t expert(int64_t i, int64_t run) const {
            return static_cast<int32_t>((i % used + (i / used + layer) * 7919 + run * used) % experts);
        }
    };

    void add(const timed_word & word, ggml_tensor * matrix, int64_t layer) {
        ggml_context * context = graph.context.get();
        if (matrix == nullptr) {
            const int64_t usual = graph.cells;
            graph.cells = word.cells > 0 ? word.cells : usual;
            word.operation->build(graph, word.asked);
            graph.cells = usual;
        } else if (word.asked.n.size() == 1) {
            graph.result(ggml_mul_mat(context, matrix, input({ word.asked.n[0], graph.tokens })));
        } else {
            ggml_tensor * ids = graph.leaf(GGML_TYPE_I32, { word.used, graph.tokens }, [](int64_t) { return 0.0; });
            routes.push_back({ ids, layer, word.used, word.experts });
            graph.result(ggml_mul_mat_id(context, matrix, input({ word.asked.n[0], 1, graph.tokens }), ids));
        }
    }

    ggml_tensor * input(const std::vector<int64_t> & ne) {
        ggml_tensor *& made = inputs[ne];
        if (made == nullptr) {
            made = graph.any(GGML_TYPE_F32, ne);
        }
        return made;
    }

    trial_graph graph;
    ggml_backend_buffer_ptr buffer;
    std::map<std::vector<int64_t>, ggml_tensor *> inputs;
    std::vector<route> routes;
    int64_t runs = 0;
};

// After one run that does not count: of those in which nothing else took a processor, a quarter is shorter. Where there
// is none, the shortest counts, by the time that each of the threads had a processor. A processor rests before each
// run, as it does while a token is on its way: then its threads sleep, its clock is slower and others use its caches,
// which costs a tenth. `threads`: of a CPU. false: it failed
static bool measure(timed_graph & graph, ggml_backend_t backend, int threads, std::chrono::nanoseconds too_long,
    steady::duration & usual) {
    const bool rests = ggml_backend_dev_type(ggml_backend_get_device(backend)) == GGML_BACKEND_DEVICE_TYPE_CPU;
    steady::duration sum = {};
    if (!graph.run(backend, usual)) {
        return false;
    }
    std::vector<steady::duration> all, calm;
    while ((sum < ENOUGH && (!rests || all.size() < MOST_RUNS)) || (all.size() < LEAST_RUNS && sum < too_long)) {
        if (rests) {
            std::this_thread::sleep_for(REST);
        }
        const used_processors before = used_so_far();
        if (!graph.run(backend, usual)) {
            return false;
        }
        const used_processors after = used_so_far();
        if (!rests || after.preemptions == before.preemptions) {
            calm.push_back(usual);
        }
        all.push_back(rests ? std::min<steady::duration>(usual, (after.time - before.time) / threads) : usual);
        sum += usual;
    }
    std::vector<steady::duration> & counted = calm.empty() ? all : calm;
    std::sort(counted.begin(), counted.end());
    usual = counted[calm.empty() ? 0 : calm.size() / 4];
    return true;
}

class timing {
public:
    timing(ggml_backend_t backend, int threads, const timed_layers & asked, const timing_limits & limits) :
        backend(backend), threads(threads), limits(limits) {
        for (const auto & word : asked.words) {
            words.push_back(parse_word(word));
            work += words.back().work();
        }
        weights = std::make_unique<layer_weights>(backend, words, asked.layers);
    }

    bool has_memory() const { return weights->has_memory; }

    // Nanoseconds for one layer; 0: not to be had, -1: it failed
    int64_t of(int64_t tokens) {
        const double total = work * static_cast<double>(tokens);
        int64_t layers = weights->count;
        if (tokens > 1 && total > 0) {
            layers = std::clamp(static_cast<int64_t>(limits.work / total), int64_t(1), layers);
        }
        const int64_t expected = last * tokens / std::max<int64_t>(1, last_tokens);
        if (std::chrono::nanoseconds(expected * layers) > limits.run) {
            return 0;
        }
        timed_graph graph(words, *weights, layers, tokens);
        if (!graph.prepare(backend)) {
            return 0;
        }
        steady::duration usual;
        if (!measure(graph, backend, threads, limits.run, usual)) {
            return -1;
        }
        last = std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(usual).count() / layers);
        last_tokens = tokens;
        return last;
    }

private:
    ggml_backend_t backend;
    int threads;
    timing_limits limits;
    std::vector<timed_word> words;
    double work = 0;
    std::unique_ptr<layer_weights> weights;
    int64_t last = 0; // nanoseconds of a layer, with so many tokens
    int64_t last_tokens = 1;
};

int time_device(ggml_backend_t backend, int threads, const std::vector<timed_layers> & kinds,
    const std::function<void(const std::string &)> & tell, const timing_limits & limits) {
    for (size_t i = 0; i < kinds.size(); i++) {
        timing one(backend, threads, kinds[i], limits);
        for (const int64_t tokens : TOKENS) {
            const int64_t took = one.has_memory() ? one.of(tokens) : 0;
            if (took < 0) {
                tell("failed " + std::to_string(i));
                return 2;
            }
            if (took > 0) {
                tell("took " + std::to_string(i) + " " + std::to_string(tokens) + " " + std::to_string(took));
            }
        }
    }
    tell("timed " + std::to_string(kinds.size()));
    return 0;
}

} // namespace mesh
