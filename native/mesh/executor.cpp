#include "executor.h"

#include "names.h"
#include "release.h"
#include "tensor_range.h"

namespace mesh {

executor::executor(
    const std::vector<lent_device> & devices, const local_weights & files, exchange & others, answer_function answer) :
    devices(devices), files(files), others(others), answer(std::move(answer)), memory(devices),
    shelves(devices.size()) {
    watch_nodes(&doing);
}

executor::~executor() {
    watch_nodes(nullptr);
}

template <class Body> static Body whole(const std::vector<uint8_t> & bytes) {
    reader in(bytes);
    const Body body = Body::take(in);
    in.end();
    return body;
}

// Called by a device between two nodes. true: no more of them
static bool node_done(void * data) {
    auto & doing = *static_cast<progress *>(data);
    doing.node++;
    doing.steps++;
    return doing.cancelled;
}

// Devices that can say how far they are, as the CPU, do so to `told` from now on; nullptr: to nobody
void executor::watch_nodes(progress * told) {
    for (const auto & device : devices) {
        ggml_backend_reg_t registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(device.backend));
        const auto set = reinterpret_cast<ggml_backend_set_abort_callback_t>(
            ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_abort_callback"));
        if (set != nullptr) {
            set(device.backend, told != nullptr ? node_done : nullptr, told);
        }
    }
}

void executor::handle(const wire_header & header, const std::vector<uint8_t> & bytes) {
    if (header.id == 0) {
        throw bad_message("a request has no id"); // what is done would look like nothing
    }
    doing.node = 0;
    doing.nodes = 0;
    doing.request = header.id;
    work_off(header, bytes);
    doing.request = 0;
    doing.done = header.id;
}

void executor::work_off(const wire_header & header, const std::vector<uint8_t> & bytes) {
    const auto number = static_cast<message>(header.kind);
    if (greeted == (number == message::hello)) {
        throw bad_message("HELLO comes first, and once");
    }
    reader in(bytes);
    const uint64_t id = header.id;
    switch (number) {
    case message::hello:
        return hello(id, in);
    case message::allocate: {
        const auto body = whole<allocate_body>(bytes);
        allocated_body reply;
        reply.done = memory.allocate(body.buffer, body.device, body.size) ? 1 : 0;
        return answer_body(id, reply);
    }
    case message::free:
        for (auto & shelf : shelves) {
            shelf.clear(); // they may lie in it
        }
        return memory.free(whole<free_body>(bytes).buffer);
    case message::fill:
        return fill(whole<fill_body>(bytes));
    case message::write:
        return write(in);
    case message::read:
        return read(id, whole<read_body>(bytes));
    case message::copy:
        return copy(whole<copy_body>(bytes));
    case message::graph:
        return graph(in);
    case message::compute: {
        const auto body = whole<compute_body>(bytes);
        const stored_graph * kept = body.device < devices.size() ? shelves[body.device].find(body.uid) : nullptr;
        if (kept == nullptr || body.uid == 0) {
            throw bad_message("COMPUTE names a graph that is not kept");
        }
        return compute(*kept, body.device);
    }
    case message::sync:
        return answer(message::synced, id, {});
    case message::load:
        return load(id, in);
    case message::push:
        return push(whole<push_body>(bytes));
    case message::take:
        return take(whole<take_body>(bytes));
    default:
        throw bad_message("a head does not send that");
    }
}

// The numbers in a list of names that `has` finds
template <class Has> static std::vector<uint32_t> known(uint32_t count, Has has) {
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < count; i++) {
        if (has(i)) {
            numbers.push_back(i);
        }
    }
    return numbers;
}

static wire_device describe(ggml_backend_dev_t device) {
    wire_device row;
    set_name(row.name, ggml_backend_dev_name(device));
    set_name(row.description, ggml_backend_dev_description(device));
    row.kind = static_cast<uint32_t>(ggml_backend_dev_type(device));
    ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
    row.alignment = static_cast<uint32_t>(ggml_backend_buft_get_alignment(type));
    row.most_bytes = ggml_backend_buft_get_max_size(type);
    return row;
}

void executor::hello(uint64_t id, reader & in) {
    const auto body = hello_body::take(in);
    const size_t size = in.size();
    const std::string theirs(reinterpret_cast<const char *>(in.bytes(size)), size);
    if (body.version != VERSION || theirs != ggml_release()) {
        throw bad_message("this worker has protocol " + std::to_string(VERSION) + " and ggml " + ggml_release());
    }
    greeted = true;
    const auto operations = known(OPERATION_COUNT, [](uint32_t number) {
        ggml_op op;
        return operation_of_number(number, op);
    });
    const auto types = known(TYPE_COUNT, [](uint32_t number) {
        ggml_type type;
        return type_of_number(number, type);
    });
    welcome_body head_part;
    head_part.version = VERSION;
    head_part.device_count = static_cast<uint32_t>(devices.size());
    head_part.operation_count = static_cast<uint32_t>(operations.size());
    head_part.type_count = static_cast<uint32_t>(types.size());
    const std::vector<uint32_t> numbers = others.numbers();
    head_part.neighbour_count = static_cast<uint32_t>(numbers.size());
    writer out;
    head_part.put(out);
    for (size_t i = 0; i < devices.size(); i++) {
        wire_device row = describe(ggml_backend_get_device(devices[i].backend));
        memory.memory(static_cast<uint32_t>(i), row.free_bytes, row.total_bytes);
        row.put(out);
    }
    out.put_bytes(operations.data(), operations.size() * sizeof operations[0]);
    out.put_bytes(types.data(), types.size() * sizeof types[0]);
    out.put_bytes(numbers.data(), numbers.size() * sizeof numbers[0]);
    answer(message::welcome, id, std::move(out.data));
}

void executor::fill(const fill_body & body) {
    const place where = memory.find(body.buffer, body.offset, body.size);
    if (body.value > UINT8_MAX) {
        throw bad_message("FILL with more than a byte");
    }
    if (body.size > 0) {
        tensor_range bytes(where, body.size);
        ggml_backend_tensor_memset(bytes.get(), static_cast<uint8_t>(body.value), 0, body.size);
    }
}

void executor::write(reader & in) {
    const auto body = write_body::take(in);
    const size_t size = in.size();
    const place where = memory.find(body.buffer, body.offset, size);
    if (size > 0) {
        tensor_range(where, size).write(in.bytes(size), 0, size);
    }
}

static std::vector<uint8_t> bytes_at(place where, uint32_t size) {
    std::vector<uint8_t> data(size);
    if (size > 0) {
        ggml_backend_tensor_get(tensor_range(where, size).get(), data.data(), 0, size);
    }
    return data;
}

void executor::read(uint64_t id, const read_body & body) {
    if (body.size > PIECE_BYTES) {
        throw bad_message("READ of more than a piece");
    }
    answer(message::data, id, bytes_at(memory.find(body.buffer, body.offset, body.size), body.size));
}

void executor::copy(const copy_body & body) {
    const place from = memory.find(body.from_buffer, body.from_offset, body.size);
    const place to = memory.find(body.to_buffer, body.to_offset, body.size);
    if (from.buffer == to.buffer && from.data < to.data + body.size && to.data < from.data + body.size) {
        throw bad_message("COPY between places that overlap");
    }
    if (body.size > 0) {
        ggml_backend_tensor_copy(tensor_range(from, body.size).get(), tensor_range(to, body.size).get());
    }
}

void executor::graph(reader & in) {
    const auto body = graph_body::take(in);
    if (body.device >= devices.size()) {
        throw bad_message("GRAPH names a device that there is not");
    }
    auto made = std::make_unique<stored_graph>(body, in, memory, devices[body.device].backend);
    compute(shelves[body.device].put(std::move(made)), body.device);
}

void executor::compute(const stored_graph & graph, uint32_t device) {
    doing.nodes = graph.nodes();
    const ggml_status status = graph.compute(devices[device].backend);
    if (status == GGML_STATUS_ABORTED) {
        throw interrupted();
    }
    if (status != GGML_STATUS_SUCCESS) {
        throw std::runtime_error(std::string("the device failed: ") + ggml_status_to_string(status));
    }
}

void executor::load(uint64_t id, reader & in) {
    if (in.size() % wire_load_entry::bytes != 0) {
        throw bad_message("LOAD of a part of an entry");
    }
    std::vector<wanted_weights> wanted;
    while (in.size() > 0) {
        const auto entry = wire_load_entry::take(in);
        wanted_weights one;
        if (!type_of_number(entry.type, one.type)) {
            throw bad_message("LOAD of a type that this release of ggml does not have");
        }
        one.target = memory.find(entry.buffer, entry.offset, entry.size);
        one.size = entry.size;
        std::memcpy(one.hash.data(), entry.hash, sizeof entry.hash);
        wanted.push_back(one);
    }
    files.fill(wanted, doing);
    std::vector<uint8_t> results;
    for (const auto & one : wanted) {
        results.push_back(static_cast<uint8_t>(one.result));
    }
    answer(message::loaded, id, std::move(results));
}

void executor::push(const push_body & body) {
    if (body.size > PIECE_BYTES) {
        throw bad_message("PUSH of more than a piece");
    }
    std::vector<uint8_t> data = bytes_at(memory.find(body.buffer, body.offset, body.size), body.size);
    doing.waits = body.neighbour + 1;
    others.push(body.neighbour, body.token, std::move(data));
    doing.waits = 0;
}

void executor::take(const take_body & body) {
    const place where = memory.find(body.buffer, body.offset, body.size);
    doing.waits = body.neighbour + 1;
    const std::vector<uint8_t> data = others.take(body.neighbour, body.token, body.size);
    doing.waits = 0;
    if (body.size > 0) {
        tensor_range(where, body.size).write(data.data(), 0, body.size);
    }
}

} // namespace mesh
