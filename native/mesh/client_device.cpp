#include "belonging.h"
#include "client.h"
#include "names.h"
#include "operations.h"
#include "printable.h"
#include "release.h"
#include "watch.h"

#include <stdexcept>

namespace mesh {

static client_device & self(ggml_backend_dev_t device) {
    return *static_cast<client_device *>(device->context);
}

static const char * get_name(ggml_backend_dev_t device) {
    return self(device).name.c_str();
}

static const char * get_description(ggml_backend_dev_t device) {
    return self(device).description.c_str();
}

static void get_memory(ggml_backend_dev_t device, size_t * free, size_t * total) {
    *free = self(device).free_bytes;
    *total = self(device).total_bytes;
}

// A GPU, whatever it is: llama.cpp pipelines only over those, and gives layers to nothing else by itself
static enum ggml_backend_dev_type get_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

static void get_props(ggml_backend_dev_t device, ggml_backend_dev_props * props) {
    *props = {};
    props->name = get_name(device);
    props->description = get_description(device);
    props->type = get_type(device);
    get_memory(device, &props->memory_free, &props->memory_total);
    props->caps.async = true;
    props->caps.events = true;
    allow_mapping(props->caps, 0);
}

static ggml_backend_t init_backend(ggml_backend_dev_t device, const char *) {
    return open_backend(self(device));
}

static ggml_backend_buffer_type_t get_buffer_type(ggml_backend_dev_t device) {
    return &self(device).buffer_type;
}

// What the protocol has, its worker has as well (need_all)
static bool supports_op(ggml_backend_dev_t device, const ggml_tensor * op) {
    if (belongs_elsewhere(op, &self(device).buffer_type)) {
        return false;
    }
    int32_t kind = op->op_params[0];
    if (number_of_operation(op->op) == NO_NUMBER || !kind_to_wire(op->op, kind) ||
        number_of_type(op->type) == NO_NUMBER) {
        return false;
    }
    for (const ggml_tensor * source : op->src) {
        if (source != nullptr && number_of_type(source->type) == NO_NUMBER) {
            return false;
        }
    }
    return true;
}

static bool supports_buft(ggml_backend_dev_t device, ggml_backend_buffer_type_t type) {
    return device_of(type) == &self(device);
}

static ggml_backend_event_t event_new(ggml_backend_dev_t device) {
    return new ggml_backend_event{ device, nullptr };
}

static void event_free(ggml_backend_dev_t, ggml_backend_event_t event) {
    delete event;
}

static void event_synchronize(ggml_backend_dev_t, ggml_backend_event_t) {}

static void fill_device(client_device & device, ggml_backend_reg_t registry) {
    device.device = {};
    ggml_backend_device_i & functions = device.device.iface;
    functions.get_name = get_name;
    functions.get_description = get_description;
    functions.get_memory = get_memory;
    functions.get_type = get_type;
    functions.get_props = get_props;
    functions.init_backend = init_backend;
    functions.get_buffer_type = get_buffer_type;
    functions.supports_op = supports_op;
    functions.supports_buft = supports_buft;
    functions.event_new = event_new;
    functions.event_free = event_free;
    functions.event_synchronize = event_synchronize;
    device.device.reg = registry;
    device.device.context = &device;
    fill_buffer_type(device);
}

static client_device * make_device(client_worker * worker, uint32_t number, const wire_device & row, size_t name) {
    auto * device = new client_device();
    device->worker = worker;
    device->number = number;
    device->name = "MESH" + std::to_string(name);
    device->description = printable(name_of(row.name) + ": " + name_of(row.description));
    device->alignment = row.alignment;
    device->most_bytes = row.most_bytes;
    device->free_bytes = row.free_bytes;
    device->total_bytes = row.total_bytes;
    device->lent_bytes = row.free_bytes;
    device->rule.row_padding = row.row_padding;
    device->rule.attention_copies = row.attention_copies != 0;
    device->rule.working_room = row.working_room != 0;
    // llama.cpp asks for more memory by them, of which the plan that was made for the worker's devices knows nothing
    if (row.alignment == 0 || (row.alignment & (row.alignment - 1)) != 0 || row.alignment > ALIGNMENT_BYTES) {
        throw bad_message("a device has an alignment that there is not");
    }
    if ((row.row_padding & (row.row_padding - 1)) != 0 || row.row_padding > ROW_PADDING || row.attention_copies > 1 ||
        row.working_room > 1) {
        throw bad_message("a device has a rule for sizes that there is not");
    }
    return device;
}

// Numbers of operations, types or workers, of which there are so many
static std::unordered_set<uint32_t> take_numbers(reader & in, uint32_t count, uint32_t end) {
    std::unordered_set<uint32_t> numbers;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number;
        in.take(number);
        if (number >= end || !numbers.insert(number).second) {
            throw bad_message("a list has " + std::to_string(number) + ", of " + std::to_string(end));
        }
    }
    return numbers;
}

// It has our release of ggml, or had refused HELLO. llama.cpp aborts if a device that holds a cache lacks an operation
// on it: who says that it lacks one is found out before
template <class Has, class Name>
static void need_all(const std::unordered_set<uint32_t> & numbers, uint32_t end, Has has, Name name) {
    for (uint32_t number = 0; number < end; number++) {
        if (has(number) && numbers.count(number) == 0) {
            throw bad_message(std::string("it lacks ") + name(number) + ", which its release of ggml has");
        }
    }
}

static void take_abilities(reader & in, const welcome_body & body) {
    const auto operations = take_numbers(in, body.operation_count, OPERATION_COUNT);
    const auto types = take_numbers(in, body.type_count, TYPE_COUNT);
    const auto has_operation = [](uint32_t number) {
        ggml_op op;
        return operation_of_number(number, op);
    };
    const auto has_type = [](uint32_t number) {
        ggml_type type;
        return type_of_number(number, type);
    };
    need_all(operations, OPERATION_COUNT, has_operation, [](uint32_t number) { return OPERATIONS[number].name; });
    need_all(types, TYPE_COUNT, has_type, [](uint32_t number) { return TYPE_NAMES[number]; });
}

static std::vector<client_device *> take_welcome(
    client_worker & worker, reader in, size_t first, ggml_backend_reg_t registry, uint32_t count) {
    const auto body = welcome_body::take(in);
    if (body.version != VERSION || body.device_count == 0 || body.device_count > DEVICES) {
        throw bad_message("it has another version, or no devices, or more than there can be");
    }
    if (count != 0 && body.device_count != count) { // devices of workers behind it would get other names
        throw bad_message("it has " + std::to_string(body.device_count) + " devices, not " + std::to_string(count));
    }
    std::vector<client_device *> devices;
    for (uint32_t i = 0; i < body.device_count; i++) {
        devices.push_back(make_device(&worker, i, wire_device::take(in), first + i));
        fill_device(*devices.back(), registry);
    }
    take_abilities(in, body);
    in.end();
    return devices;
}

void ask_neighbours(client_worker & worker) {
    if (worker.meet == 0) {
        worker.meet = worker.link.ask_whole(message::meet, message::met, worker.met);
    }
}

bool take_neighbours(client_worker & worker) {
    if (worker.meet == 0 || !worker.link.wait(worker.meet)) {
        return false;
    }
    try {
        reader in(worker.met);
        worker.neighbours = take_numbers(in, static_cast<uint32_t>(in.size() / sizeof(uint32_t)), NEIGHBOURS);
        in.end();
        return true;
    } catch (const bad_message & error) {
        worker.link.lose(std::string("its MET is wrong: ") + error.what());
        return false;
    }
}

// Its devices, named from `first` on
static std::vector<client_device *> await_devices(client_worker & worker, size_t first, ggml_backend_reg_t registry,
    uint32_t count, std::chrono::steady_clock::time_point until) {
    worker.link.call("MESH" + std::to_string(first));
    blob welcome;
    if (!worker.link.await_welcome(welcome, until)) {
        throw std::runtime_error("the worker of " + worker.link.name() + " cannot be used");
    }
    try {
        return take_welcome(worker, reader(welcome), first, registry, count);
    } catch (const bad_message & error) {
        worker.link.lose(std::string("its WELCOME is wrong: ") + error.what());
        throw;
    }
}

std::vector<client_device *> open_workers(const std::vector<worker_socket> & sockets, ggml_backend_reg_t registry,
    const weights_index & index, uint32_t first, std::chrono::milliseconds patience) {
    // devices are for as long as the process is, and so is what they speak through
    const auto all = std::make_shared<std::vector<client_worker *>>();
    const auto check = std::make_shared<context_check>();
    for (const worker_socket & one : sockets) {
        all->push_back(new client_worker(one.socket, first + static_cast<uint32_t>(all->size()), index));
        all->back()->all = all;
        all->back()->check = check;
        all->back()->link.greet(ggml_release()); // what becomes of it is seen below
    }
    const auto until =
        std::chrono::steady_clock::now() + patience; // for all: many slow ones are not waited for in turn
    std::vector<client_device *> devices;
    for (size_t i = 0; i < all->size(); i++) {
        const auto found = await_devices(*all->at(i), first + devices.size(), registry, sockets[i].count, until);
        devices.insert(devices.end(), found.begin(), found.end());
    }
    static watch & watched = *new watch(watch::grace_of_parent()); // as long as its workers: to the end of the process
    for (client_worker * worker : *all) {
        watched.add(worker->link, worker->place);
    }
    watched.start();
    return devices;
}

} // namespace mesh
