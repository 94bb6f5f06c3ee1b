#include "client.h"
#include "read_ahead.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cstdio>

namespace mesh {

static client_device & device_of(ggml_backend_t backend) {
    return *static_cast<client_device *>(backend->context);
}

static const char * get_name(ggml_backend_t backend) {
    return device_of(backend).name.c_str();
}

static void free_backend(ggml_backend_t backend) {
    delete backend;
}

static void set_tensor_async(ggml_backend_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    write_tensor(tensor, data, offset, size);
}

static void get_tensor_async(ggml_backend_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    read_tensor(tensor, data, offset, size);
}

static bool cpy_tensor_async(ggml_backend_t from_backend, ggml_backend_t, const ggml_tensor * from, ggml_tensor * to) {
    if (from->buffer != nullptr && ggml_backend_buffer_is_host(from->buffer)) {
        ggml_backend_synchronize(from_backend);
        return write_activation(from, to);
    }
    return copy_tensor(from, to);
}

// Enough: the worker works in order, so that only what was asked back has to be waited for
static void synchronize(ggml_backend_t backend) {
    device_of(backend).worker->link.wait_all();
}

static std::deque<kept_graph> & kept_of(const client_device & device) {
    return device.worker->graphs[device.number];
}

static const kept_graph * find_kept(const client_device & device, uint64_t uid) {
    for (const kept_graph & one : kept_of(device)) {
        if (uid != 0 && one.now == uid) {
            return &one;
        }
    }
    return nullptr;
}

// One that differs in its uid alone, which is at the beginning
static kept_graph * find_same(const client_device & device, const blob & body) {
    for (kept_graph & one : kept_of(device)) {
        if (one.body.size() == body.size() &&
            std::equal(body.begin() + sizeof one.uid, body.end(), one.body.begin() + sizeof one.uid)) {
            return &one;
        }
    }
    return nullptr;
}

// What is added up behind it comes at once: until the last graph of a token there is no hurry
static bool compute_kept(client_device & device, const kept_graph & kept) {
    compute_body body;
    body.uid = device.computed = kept.uid;
    body.device = device.number;
    return device.worker->link.send_computation(body, device.worker->summed.count(kept.uid) != 0);
}

static size_t most_kept(const client_worker & worker) {
    return worker.sums ? SUM_GRAPHS : STORED_GRAPHS;
}

static bool write_or_say(
    const client_device & device, const ggml_cgraph * graph, const set_aside & results, uint64_t first, writer & out) {
    std::string why;
    const bool written = write_graph(graph, device, results, first, out, why);
    if (!written) {
        std::fprintf(stderr, "mesh: a graph for %s cannot be computed: %s\n", device.name.c_str(), why.c_str());
    }
    return written;
}

static bool compute_new(client_device & device, const ggml_cgraph * graph) {
    // 1. As it would be with the first places for its small results
    const set_aside results = results_of(device, graph);
    if (!results.places.empty() && !has_room(device)) {
        std::fprintf(stderr, "mesh: %s has no memory for results\n", device.name.c_str());
        return false;
    }
    writer plain;
    if (!write_or_say(device, graph, results, 0, plain)) {
        return false;
    }
    // 2. The worker keeps the same one
    if (kept_graph * same = graph->uid == 0 ? nullptr : find_same(device, plain.data)) {
        same->now = graph->uid;
        note_results(device, graph, results, same->first);
        return compute_kept(device, *same);
    }
    // 3. A new one, with places of its own
    const uint64_t first = next_place(device, results);
    writer placed;
    if (first != 0 && !write_or_say(device, graph, results, first, placed)) {
        return false;
    }
    note_results(device, graph, results, first);
    if (!device.worker->link.send_bytes(message::graph, first != 0 ? placed.data : plain.data)) {
        return false;
    }
    device.computed = graph->uid;
    if (graph->uid == 0) {
        return true;
    }
    std::deque<kept_graph> & kept = kept_of(device);
    kept.push_back({ graph->uid, graph->uid, first, std::move(plain.data) });
    if (kept.size() > most_kept(*device.worker)) {
        device.worker->summed.erase(kept.front().uid);
        kept.pop_front();
    }
    return true;
}

static ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    client_device & device = device_of(backend);
    if (graph->n_nodes == 0 || device.worker->check->skips_compute(device.wanted)) {
        return GGML_STATUS_SUCCESS;
    }
    if (!device.worker->loading.settle()) {
        return GGML_STATUS_FAILED;
    }
    std::lock_guard<std::mutex> lock(device.worker->link.order);
    // with the same uid it is the same graph of the same tensors, whose places are noted
    const kept_graph * kept = find_kept(device, graph->uid);
    const bool sent = kept != nullptr ? compute_kept(device, *kept) : compute_new(device, graph);
    return sent ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
}

// Events are there because llama.cpp pipelines only where they are. What they order is in order anyway.
static void event_record(ggml_backend_t, ggml_backend_event_t) {}

static void event_wait(ggml_backend_t, ggml_backend_event_t) {}

static void ask_to_sync(client_worker & worker) {
    worker.synced = worker.link.ask(message::sync, {}, message::synced, nullptr, 0);
}

// All that was asked to be loaded is there from here on. All workers are asked before one is waited for, so that a
// model is loaded in one round trip however many there are. false: it is not, or the worker is lost
static bool is_settled(client_worker & worker) {
    if (worker.synced != worker.link.asked()) {
        for (client_worker * one : *worker.all) {
            one->loading.ask_now();
            ask_neighbours(*one);
            ask_to_sync(*one);
        }
    }
    read_the_rest();
    if (!worker.loading.settle() || !worker.loading.files_unchanged()) {
        return false;
    }
    if (worker.synced != worker.link.asked()) { // it lacked weights, which are on their way
        ask_to_sync(worker);
    }
    return worker.synced != 0 && worker.link.wait(worker.synced) && take_neighbours(worker);
}

ggml_backend_t open_backend(client_device & device) {
    static ggml_guid guid = { 'm', 'e', 's', 'h', 'd', '-', 'b', 'a', 'c', 'k', 'e', 'n', 'd', '-', '0', '1' };
    if (!is_settled(*device.worker)) {
        return nullptr;
    }
    device.worker->link.serve();
    auto * backend = new ggml_backend();
    backend->guid = &guid;
    backend->iface.get_name = get_name;
    backend->iface.free = free_backend;
    backend->iface.set_tensor_async = set_tensor_async;
    backend->iface.get_tensor_async = get_tensor_async;
    backend->iface.cpy_tensor_async = cpy_tensor_async;
    backend->iface.synchronize = synchronize;
    backend->iface.graph_compute = graph_compute;
    backend->iface.event_record = event_record;
    backend->iface.event_wait = event_wait;
    backend->device = &device.device;
    backend->context = &device;
    return backend;
}

} // namespace mesh
