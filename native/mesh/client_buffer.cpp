#include "client.h"
#include "report.h"

#include "ggml.h"

#include <atomic>
#include <cstdio>

namespace mesh {

// No processor has memory at such an address: what dereferences it by mistake ends at once
static constexpr uint64_t FIRST_BASE = 1ull << 52;
static constexpr uint64_t GAP = 1ull << 21;

static client_buffer * context_of(ggml_backend_buffer_t buffer) {
    return static_cast<client_buffer *>(buffer->context);
}

// The connection's order is held
static void give_back(std::unique_ptr<client_buffer> own) {
    client_worker & worker = *own->device->worker;
    own->device->held_bytes -= own->size;
    for (auto & kept : worker.graphs) {
        kept.clear(); // as the worker does
    }
    worker.summed.clear();
    free_body body;
    body.buffer = own->number;
    worker.link.send(body);
}

static void free_buffer(ggml_backend_buffer_t buffer) {
    std::unique_ptr<client_buffer> own(context_of(buffer));
    client_device & device = *own->device;
    device.worker->loading.settle();
    std::lock_guard<std::mutex> lock(device.worker->link.order);
    if (buffer->usage == GGML_BACKEND_BUFFER_USAGE_COMPUTE) {
        device.spare.swap(own);
    }
    if (own != nullptr) {
        give_back(std::move(own));
    }
}

// What was freed last, if it is large enough and not much larger; else it is freed, so that there is room
static std::unique_ptr<client_buffer> take_spare(client_device & device, uint64_t size) {
    std::lock_guard<std::mutex> lock(device.worker->link.order);
    if (device.spare != nullptr && (device.spare->size < size || device.spare->size / 2 > size)) {
        give_back(std::move(device.spare));
    }
    return std::move(device.spare);
}

static void * get_base(ggml_backend_buffer_t buffer) {
    return reinterpret_cast<void *>(context_of(buffer)->base);
}

static void fill(const client_buffer * buffer, uint8_t value, uint64_t offset, uint64_t size) {
    fill_body body;
    body.buffer = buffer->number;
    body.value = value;
    body.offset = offset;
    body.size = size;
    buffer->device->worker->link.send(body);
}

static void memset_tensor(
    ggml_backend_buffer_t buffer, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    fill(context_of(buffer), value, offset_in(context_of(buffer), tensor) + offset, size);
}

static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    client_buffer * own = context_of(buffer);
    own->device->worker->check->cleared(own->cleared++);
    fill(own, value, 0, own->size);
}

// What --split-mode tensor gives a worker of a tensor. false: it is no weight, or has to be written
static bool load_part(
    client_buffer * own, const ggml_tensor * tensor, const void * data, size_t offset, const equal_pieces & pieces) {
    const ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
    return buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
           own->device->worker->loading.take_part(
               own->number, offset_in(own, tensor) + offset, tensor->type, data, pieces);
}

static void set_tensor(
    ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    client_buffer * own = context_of(buffer);
    if (buffer->usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS && offset == 0 && size == ggml_nbytes(tensor) &&
        ggml_is_contiguous(tensor) &&
        own->device->worker->loading.take(own->number, offset_in(own, tensor), tensor->type, data, size)) {
        return;
    }
    if (!load_part(own, tensor, data, offset, { size, 1, size, size })) {
        write_tensor(tensor, data, offset, size);
    }
}

static void set_tensor_2d(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset,
    size_t size, size_t count, size_t stride, size_t data_stride) {
    if (load_part(context_of(buffer), tensor, data, offset, { size, count, stride, data_stride })) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        write_tensor(tensor, static_cast<const uint8_t *>(data) + i * data_stride, offset + i * stride, size);
    }
}

static void get_tensor(
    ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    connection & link = context_of(buffer)->device->worker->link;
    if (offset == 0 && size == ggml_nbytes(tensor) && read_activation(tensor, data)) {
        return;
    }
    if (!read_tensor(tensor, data, offset, size) || !link.wait_all()) {
        std::memset(data, 0, size); // only while a model is loaded, which fails then
    } else if (offset == 0 && size == ggml_nbytes(tensor)) {
        check_read(tensor, data);
    }
}

// All are asked for before one is waited for
static void get_tensor_2d(ggml_backend_buffer_t buffer, const ggml_tensor * tensor, void * data, size_t offset,
    size_t size, size_t count, size_t stride, size_t data_stride) {
    auto * target = static_cast<uint8_t *>(data);
    bool asked = true;
    for (size_t i = 0; i < count && asked; i++) {
        asked = read_tensor(tensor, target + i * data_stride, offset + i * stride, size);
    }
    if (!context_of(buffer)->device->worker->link.wait_all() || !asked) {
        for (size_t i = 0; i < count; i++) {
            std::memset(target + i * data_stride, 0, size); // as get_tensor()
        }
    }
}

static bool cpy_tensor(ggml_backend_buffer_t, const ggml_tensor * from, ggml_tensor * to) {
    return copy_tensor(from, to) || write_activation(from, to);
}

client_buffer * buffer_of(const ggml_tensor * tensor) {
    ggml_backend_buffer_t buffer = tensor->view_src != nullptr ? tensor->view_src->buffer : tensor->buffer;
    return buffer != nullptr && buffer->iface.get_base == get_base ? context_of(buffer) : nullptr;
}

static const char * type_name(ggml_backend_buffer_type_t type) {
    return static_cast<client_device *>(type->context)->name.c_str();
}

static size_t alignment(ggml_backend_buffer_type_t type) {
    return static_cast<client_device *>(type->context)->alignment;
}

static size_t most_bytes(ggml_backend_buffer_type_t type) {
    return static_cast<client_device *>(type->context)->most_bytes;
}

static size_t alloc_size(ggml_backend_buffer_type_t type, const ggml_tensor * tensor) {
    auto * device = static_cast<client_device *>(type->context);
    const uint64_t size = allocation_size(device->rule, tensor);
    if (size > device->most_bytes) {
        device->worker->link.lose("a buffer of it has " + std::to_string(device->most_bytes) +
                                  " bytes at most, and a tensor needs " + std::to_string(size));
    }
    return size;
}

// What was not promised: the parent process is told what was too much, and llama.cpp may do with less, or ends
static void exceeded(const client_device & device, uint64_t all) {
    std::fprintf(stderr, "mesh: %s needs %llu bytes, of which %llu are lent\n", device.name.c_str(),
        static_cast<unsigned long long>(all), static_cast<unsigned long long>(device.lent_bytes));
    report("exceeded " + std::to_string(device.worker->place) + " " + std::to_string(device.number) + " " +
           std::to_string(all) + " " + std::to_string(device.lent_bytes));
}

// Waits only for memory that was not promised. false: there is none, or the worker is lost
static bool is_given(client_device & device, const allocate_body & body) {
    connection & link = device.worker->link;
    const uint64_t all = device.held_bytes + body.size;
    if (all <= device.lent_bytes) {
        return link.demand(body, "it has no memory for a buffer of " + std::to_string(body.size) +
                                     " bytes, and lends " + std::to_string(device.lent_bytes - device.held_bytes));
    }
    allocated_body reply;
    const uint64_t id = link.ask(body, message::allocated, &reply.done, sizeof reply.done);
    if (id == 0 || !link.wait(id)) {
        return false;
    }
    if (reply.done != 1) {
        exceeded(device, all);
    }
    return reply.done == 1;
}

std::unique_ptr<client_buffer> ask_for(client_device & device, uint64_t size) {
    static std::atomic<uint32_t> last_number{ 0 };
    static std::atomic<uint64_t> next_base{ FIRST_BASE };
    allocate_body body;
    body.buffer = ++last_number;
    body.device = device.number;
    body.size = size;
    if (!is_given(device, body)) {
        return nullptr;
    }
    device.held_bytes += size;
    const uint64_t room = (size + GAP) / GAP * GAP + GAP;
    return std::unique_ptr<client_buffer>(new client_buffer{ &device, body.buffer, next_base.fetch_add(room), size });
}

static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size) {
    auto * device = static_cast<client_device *>(type->context);
    std::unique_ptr<client_buffer> own = take_spare(*device, size);
    if (own == nullptr) {
        own = ask_for(*device, size);
    }
    if (own == nullptr) {
        return nullptr;
    }
    ggml_backend_buffer_i functions = {};
    functions.free_buffer = free_buffer;
    functions.get_base = get_base;
    functions.memset_tensor = memset_tensor;
    functions.set_tensor = set_tensor;
    functions.set_tensor_2d = set_tensor_2d;
    functions.get_tensor = get_tensor;
    functions.get_tensor_2d = get_tensor_2d;
    functions.cpy_tensor = cpy_tensor;
    functions.clear = clear;
    size = own->size;
    return ggml_backend_buffer_init(type, functions, own.release(), size);
}

client_device * device_of(ggml_backend_buffer_type_t type) {
    return type->iface.alloc_buffer == allocate ? static_cast<client_device *>(type->context) : nullptr;
}

void fill_buffer_type(client_device & device) {
    device.buffer_type = {};
    device.buffer_type.iface.get_name = type_name;
    device.buffer_type.iface.alloc_buffer = allocate;
    device.buffer_type.iface.get_alignment = alignment;
    device.buffer_type.iface.get_max_size = most_bytes;
    device.buffer_type.iface.get_alloc_size = alloc_size;
    device.buffer_type.device = &device.device;
    device.buffer_type.context = &device;
}

} // namespace mesh
