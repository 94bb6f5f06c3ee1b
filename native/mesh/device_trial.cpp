#include "device_trial.h"

#include "sizes.h"
#include "trial_words.h"

#include "ggml-alloc.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>

namespace mesh {

// Of the tensors of all graphs: those of a large model need a tenth
static constexpr uint64_t MOST_BYTES = 1 << 30;

// A backend and the memory of its graphs, which is kept to the end: a server does not give it back between graphs
// either, and drivers are known that do not survive that
struct tried_backend {
    ggml_backend_ptr backend;
    std::vector<ggml_backend_buffer_ptr> buffers;
    uint64_t bytes = 0;
};

typedef std::vector<std::vector<float>> results;

static double error_of(const std::vector<float> & found, const std::vector<float> & right) {
    double off = 0;
    double size = 0;
    for (size_t i = 0; i < right.size(); i++) {
        if (!std::isfinite(found[i]) || !std::isfinite(right[i])) {
            return INFINITY;
        }
        const double difference = static_cast<double>(found[i]) - static_cast<double>(right[i]);
        off += difference * difference;
        size += static_cast<double>(right[i]) * static_cast<double>(right[i]);
    }
    return off == 0 ? 0 : size > 0 ? off / size : INFINITY;
}

// Why it could not, or ""
static std::string compute(tried_backend & tried, trial_graph & graph, results & found) {
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(graph.context.get(), tried.backend.get());
    if (buffer == nullptr) {
        return "memory";
    }
    tried.buffers.emplace_back(buffer);
    graph.fill();
    const ggml_status status = ggml_backend_graph_compute(tried.backend.get(), graph.graph());
    if (status != GGML_STATUS_SUCCESS) {
        return ggml_status_to_string(status);
    }
    found = graph.read();
    return "";
}

// The first operation that the device says it does not have, or nullptr
static const ggml_tensor * lacking(ggml_backend_t backend, ggml_cgraph * graph) {
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        if (!ggml_backend_supports_op(backend, ggml_graph_node(graph, i))) {
            return ggml_graph_node(graph, i);
        }
    }
    return nullptr;
}

static std::string shown(double number) {
    char text[32];
    std::snprintf(text, sizeof text, " %.1e", number);
    return text;
}

// One operation with so many tokens at a time: other kernels compute a prompt
class try_out {
public:
    try_out(tried_backend & device, tried_backend & cpu, double tolerance) :
        device(device), cpu(cpu), tolerance(tolerance) {}

    // What to say of it, or "" if it is right
    std::string run(const trial_operation & operation, const trial_numbers & asked, int64_t tokens) {
        trial_graph here(tokens);
        trial_graph there(tokens);
        if (!operation.build(here, asked) || !operation.build(there, asked) ||
            here.bytes() > MOST_BYTES - device.bytes) {
            return "unknown";
        }
        device.bytes += here.bytes();
        if (const ggml_tensor * node = lacking(device.backend.get(), here.graph())) {
            lacks = ggml_op_desc(node);
            return "";
        }
        results right;
        results found;
        if (!compute(cpu, there, right).empty()) {
            return "unknown"; // there is nothing to compare with
        }
        cpu.buffers.clear();
        const std::string why = compute(device, here, found);
        return why.empty() ? compare(found, right, here.limit * tolerance) : "failed " + why;
    }

    double worst = 0;
    std::string lacks; // it may be of one size only

private:
    std::string compare(const results & found, const results & right, double limit) {
        for (size_t i = 0; i < right.size(); i++) {
            const double error = error_of(found[i], right[i]);
            if (!(error <= limit)) {
                return "wrong" + shown(error) + shown(limit);
            }
            worst = std::max(worst, error);
        }
        return "";
    }

    tried_backend & device;
    tried_backend & cpu;
    const double tolerance;
};

// A verdict, and what stands behind it, with the word between them
static std::string try_word(tried_backend & device, tried_backend & cpu, const std::string & word, double tolerance) {
    trial_numbers asked;
    const trial_operation * operation = parse_trial(word, asked);
    if (operation == nullptr) {
        return "unknown " + word;
    }
    try_out out(device, cpu, tolerance);
    for (const int64_t tokens : { 1, 40 }) {
        const std::string verdict = out.run(*operation, asked, tokens);
        if (!verdict.empty()) {
            const size_t space = std::min(verdict.find(' '), verdict.size());
            return verdict.substr(0, space) + " " + word + verdict.substr(space);
        }
    }
    return out.lacks.empty() ? "right " + word + shown(out.worst) : "lacks " + word + " " + out.lacks;
}

static ggml_backend_t open_plain_cpu() {
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (cpu != nullptr) {
        // kernels that were compared with nothing, where there are several
        ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
        const auto set_plain = reinterpret_cast<void (*)(ggml_backend_t, bool)>(
            ggml_backend_reg_get_proc_address(registry, "ggml_backend_cpu_set_use_ref"));
        if (set_plain != nullptr) {
            set_plain(cpu, true);
        }
    }
    return cpu;
}

// Why it cannot be lent whatever it computes, or ""
static std::string open(ggml_backend_dev_t device, tried_backend & tried) {
    tried.backend.reset(ggml_backend_dev_init(device, nullptr));
    if (tried.backend == nullptr) {
        return "it cannot be opened";
    }
    try {
        find_size_rule(ggml_backend_get_default_buffer_type(tried.backend.get()));
        return "";
    } catch (const std::runtime_error & error) {
        return error.what();
    }
}

int try_device(ggml_backend_dev_t device, const std::vector<std::string> & words, double tolerance,
    const std::function<void(const std::string &)> & tell) {
    tried_backend tried;
    tried_backend cpu;
    cpu.backend.reset(open_plain_cpu());
    const std::string why = cpu.backend == nullptr ? "there is no CPU to compare with" : open(device, tried);
    if (!why.empty()) {
        tell("failed device " + why);
        return 2;
    }
    bool wrong = false;
    for (const auto & word : words) {
        tell("trying " + word);
        const std::string line = try_word(tried, cpu, word, tolerance);
        wrong = wrong || line.rfind("wrong ", 0) == 0 || line.rfind("failed ", 0) == 0;
        tell(line);
    }
    tell("tried " + std::to_string(words.size()));
    return wrong ? 2 : 0;
}

} // namespace mesh
