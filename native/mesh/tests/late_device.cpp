#include "late_device.h"

#include "sizes.h"

#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>

namespace mesh {

static constexpr size_rule RULE = { 512, true };
static constexpr uint8_t OLD = 0xA5; // what was in its memory before

// --- memory

static void free_buffer(ggml_backend_buffer_t buffer) {
    std::free(buffer->context);
}

static void * get_base(ggml_backend_buffer_t buffer) {
    return buffer->context;
}

static void memset_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    std::memset(static_cast<char *>(tensor->data) + offset, value, size);
}

static void set_tensor(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    std::memcpy(static_cast<char *>(tensor->data) + offset, data, size);
}

static void get_tensor(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const char *>(tensor->data) + offset, size);
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    std::memset(buffer->context, value, buffer->size);
}

static ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    void * bytes = std::aligned_alloc(128, (size + 127) / 128 * 128);
    std::memset(bytes, OLD, size);
    static_cast<late_device *>(type->context)->made(bytes, size);
    ggml_backend_buffer_i functions = {};
    functions.free_buffer = free_buffer;
    functions.get_base = get_base;
    functions.memset_tensor = memset_tensor;
    functions.set_tensor = set_tensor;
    functions.get_tensor = get_tensor;
    functions.clear = clear;
    return ggml_backend_buffer_init(type, functions, bytes, size);
}

static size_t get_alloc_size(ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
    return allocation_size(RULE, tensor);
}

// --- what it is given

static late_device & self(ggml_backend_t backend) {
    return *static_cast<late_device *>(backend->context);
}

static void set_async(ggml_backend_t backend, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    char * to = static_cast<char *>(tensor->data) + offset;
    self(backend).give([=] { std::memcpy(to, data, size); });
}

static void get_async(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    const char * from = static_cast<const char *>(tensor->data) + offset;
    self(backend).give([=] { std::memcpy(data, from, size); });
}

static void synchronize(ggml_backend_t backend) {
    self(backend).wait_all();
}

static ggml_status graph_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    self(backend).compute(graph);
    return GGML_STATUS_SUCCESS;
}

struct late_event {
    std::mutex mutex;
    std::condition_variable changed;
    size_t recorded = 0;
    size_t reached = 0;
};

typedef std::shared_ptr<late_event> shared_event;

static shared_event & event_of(ggml_backend_event_t event) {
    return *static_cast<shared_event *>(event->context);
}

static void wait_for(const shared_event & event) {
    std::unique_lock<std::mutex> lock(event->mutex);
    event->changed.wait(lock, [&, until = event->recorded] { return event->reached >= until; });
}

static void reach(const shared_event & event, size_t number) {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->reached = number;
    event->changed.notify_all();
}

static void event_record(ggml_backend_t backend, ggml_backend_event_t event) {
    const shared_event one = event_of(event);
    std::lock_guard<std::mutex> lock(one->mutex);
    self(backend).give([one, number = ++one->recorded] { reach(one, number); });
}

static void event_wait(ggml_backend_t backend, ggml_backend_event_t event) {
    self(backend).give([one = event_of(event)] { wait_for(one); });
}

// As CUDA's: the source does it, and the target waits for it
static bool copy_async(ggml_backend_t source, ggml_backend_t target, const ggml_tensor * from, ggml_tensor * to) {
    const auto copied = std::make_shared<late_event>();
    copied->recorded = 1;
    self(source).give([copied, first = from->data, second = to->data, size = ggml_nbytes(from)] {
        std::memcpy(second, first, size);
        reach(copied, 1);
    });
    if (target != source) {
        self(target).give([copied] { wait_for(copied); });
    }
    return true;
}

static ggml_backend_event_t event_new(ggml_backend_dev_t device) {
    return new ggml_backend_event{ device, new shared_event(std::make_shared<late_event>()) };
}

static void event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete &event_of(event);
    delete event;
}

static void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t event) {
    wait_for(event_of(event));
}

// --- the device

static const char * type_name(ggml_backend_buffer_type_t) {
    return "LATE";
}
static const char * device_name(ggml_backend_dev_t) {
    return "LATE0";
}
static const char * backend_name(ggml_backend_t) {
    return "LATE";
}
static size_t alignment(ggml_backend_buffer_type_t) {
    return 128;
}
static void device_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = size_t(1) << 30;
}
static enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}
static void device_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    *props = {};
    props->name = props->description = device_name(device);
    props->type = device_type(device);
    props->caps.async = true;
    props->caps.events = static_cast<late_device *>(device->context)->has_events;
}
static ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t device) {
    return &static_cast<late_device *>(device->context)->memory;
}
static bool supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return ggml_backend_dev_supports_op(ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0), op);
}
static bool supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type->iface.get_name == type_name;
}

static void free_backend(ggml_backend_t backend) {
    self(backend).wait_all();
    delete backend;
}

late_device::late_device(bool has_events) : has_events(has_events), cpu(ggml_backend_cpu_init()) {
    static ggml_backend_reg registry = {};
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    device.iface.get_name = device.iface.get_description = device_name;
    device.iface.get_memory = device_memory;
    device.iface.get_type = device_type;
    device.iface.get_props = device_props;
    device.iface.get_buffer_type = device_buffer_type;
    device.iface.supports_op = supports_op;
    device.iface.supports_buft = supports_buft;
    device.iface.event_new = event_new;
    device.iface.event_free = event_free;
    device.iface.event_synchronize = event_synchronize;
    device.reg = &registry;
    device.context = this;
    memory.iface.get_name = type_name;
    memory.iface.alloc_buffer = alloc_buffer;
    memory.iface.get_alignment = alignment;
    memory.iface.get_alloc_size = get_alloc_size;
    memory.device = &device;
    memory.context = this;
    std::thread([this] { run(); }).detach();
}

ggml_backend_t late_device::open() {
    static ggml_guid guid = { 'l', 'a', 't', 'e' };
    auto * backend = new ggml_backend();
    backend->guid = &guid;
    backend->iface.get_name = backend_name;
    backend->iface.free = free_backend;
    backend->iface.set_tensor_async = set_async;
    backend->iface.get_tensor_async = get_async;
    backend->iface.cpy_tensor_async = copy_async;
    backend->iface.synchronize = synchronize;
    backend->iface.graph_compute = graph_compute;
    backend->iface.event_record = event_record;
    backend->iface.event_wait = event_wait;
    backend->device = &device;
    backend->context = this;
    return backend;
}

void late_device::made(const void * bytes, size_t size) {
    std::lock_guard<std::mutex> lock(mutex);
    last_bytes = static_cast<const uint8_t *>(bytes);
    last_size = size;
}

std::vector<uint8_t> late_device::last_buffer() {
    std::lock_guard<std::mutex> lock(mutex);
    return { last_bytes, last_bytes + last_size };
}

void late_device::give(std::function<void()> run, bool graph) {
    std::lock_guard<std::mutex> lock(mutex);
    graphs += graph ? 1 : 0;
    jobs.push_back({ std::move(run), graph });
    changed.notify_all();
}

void late_device::wait_all() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return jobs.empty() && !working; });
}

void late_device::hold() {
    std::lock_guard<std::mutex> lock(mutex);
    held = true;
}

void late_device::release() {
    std::lock_guard<std::mutex> lock(mutex);
    held = false;
    changed.notify_all();
}

size_t late_device::waiting() {
    std::lock_guard<std::mutex> lock(mutex);
    return graphs - done;
}

size_t late_device::computed() {
    std::lock_guard<std::mutex> lock(mutex);
    return done;
}

void late_device::run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return !jobs.empty() && !held; });
        const job next = std::move(jobs.front());
        jobs.pop_front();
        working = true;
        lock.unlock();
        next.run();
        lock.lock();
        working = false;
        done += next.graph ? 1 : 0;
        changed.notify_all();
    }
}

// The graph as it is now, of which nothing is read later: whoever gave it may change it
void late_device::compute(const ggml_cgraph * graph) {
    const auto tensors = std::make_shared<std::deque<ggml_tensor>>();
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies;
    const std::function<ggml_tensor *(const ggml_tensor *)> copy = [&](const ggml_tensor * from) -> ggml_tensor * {
        if (from == nullptr || copies.count(from) != 0) {
            return from == nullptr ? nullptr : copies[from];
        }
        tensors->push_back(*from);
        ggml_tensor * made = copies[from] = &tensors->back();
        for (auto & source : made->src) {
            source = copy(source);
        }
        made->view_src = copy(made->view_src);
        return made;
    };
    std::vector<ggml_tensor *> nodes;
    for (int i = 0; i < graph->n_nodes; i++) {
        nodes.push_back(copy(graph->nodes[i]));
    }
    give(
        [this, tensors, nodes] {
            ggml_context_ptr context(ggml_init({ ggml_graph_overhead_custom(nodes.size(), false), nullptr, true }));
            ggml_cgraph * made = ggml_new_graph_custom(context.get(), nodes.size(), false);
            std::copy(nodes.begin(), nodes.end(), made->nodes);
            made->n_nodes = static_cast<int>(nodes.size());
            ggml_backend_graph_compute(cpu.get(), made);
        },
        true);
}

} // namespace mesh
