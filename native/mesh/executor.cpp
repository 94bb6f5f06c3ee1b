#include "executor.h"

#include "half_rows.h"
#include "names.h"
#include "release.h"
#include "report.h"
#include "sums.h"
#include "tensor_range.h"
#include "trace.h"
#include "welcome.h"

#include <algorithm>

namespace mesh {

executor::executor(const std::vector<lent_device> & devices, const local_weights & files, exchange & others,
    answer_function answer, std::function<void()> woken) :
    devices(devices), files(files), others(others), answer(std::move(answer)), memory(devices), shelves(devices.size()),
    under_way(devices, doing, std::move(woken)) {
    watch_nodes(&doing);
}

executor::~executor() {
    watch_nodes(nullptr);
}

template <class Body> static Body whole(const blob & bytes) {
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

void executor::settle() {
    wait();
    under_way.check();
}

void executor::handle(const wire_header & header, blob bytes) {
    if (doing.cancelled) {
        throw interrupted(); // what was read ahead is of no use to anybody
    }
    under_way.check();
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

void executor::work_off(const wire_header & header, blob & bytes) {
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
        return free(whole<free_body>(bytes));
    case message::fill:
        return fill(whole<fill_body>(bytes));
    case message::write:
        return write(id, bytes);
    case message::read:
        return read(id, whole<read_body>(bytes));
    case message::copy:
        return copy(whole<copy_body>(bytes));
    case message::graph:
        return graph(id, in);
    case message::compute:
        return compute(id, whole<compute_body>(bytes));
    case message::sync:
        settle();
        return answer(message::synced, id, {});
    case message::load:
        return load(id, in);
    case message::meet:
        return answer(message::met, id, make_met(others.numbers()));
    case message::push:
        return push(id, whole<push_body>(bytes));
    case message::take:
        return take(id, whole<take_body>(bytes));
    case message::sum:
        return sum(id, whole<sum_body>(bytes));
    case message::load_parts:
        return load_parts(id, in);
    default:
        throw bad_message("a head does not send that");
    }
}

void executor::hello(uint64_t id, reader & in) {
    const auto body = hello_body::take(in);
    const size_t size = in.size();
    const std::string theirs(reinterpret_cast<const char *>(in.bytes(size)), size);
    if (body.version != VERSION || theirs != ggml_release()) {
        throw bad_message("this worker has protocol " + std::to_string(VERSION) + " and ggml " + ggml_release());
    }
    greeted = true;
    answer(message::welcome, id, make_welcome(devices, memory));
}

void executor::free(const free_body & body) {
    settle();
    for (auto & shelf : shelves) {
        shelf.clear(); // they may lie in it
    }
    recent.clear();
    memory.free(body.buffer);
}

void executor::fill(const fill_body & body) {
    const place where = memory.find(body.buffer, body.offset, body.size);
    if (body.value > UINT8_MAX) {
        throw bad_message("FILL with more than a byte");
    }
    if (body.size > 0) {
        settle();
        recent.changed(where, body.size);
        if (body.value == 0) {
            return memory.clear(body.buffer, body.offset, body.size);
        }
        tensor_range bytes(where, body.size);
        ggml_backend_tensor_memset(bytes.get(), static_cast<uint8_t>(body.value), 0, body.size);
    }
}

void executor::write(uint64_t id, blob & bytes) {
    reader in(bytes);
    const auto body = write_body::take(in);
    const size_t come = in.size();
    const size_t size = bytes_in_buffer(come, body.row);
    const place where = memory.find(body.buffer, body.offset, size);
    if (size == 0) {
        return;
    }
    const traced copying("in", where.device);
    const uint8_t * data = in.bytes(come);
    memory.filled(body.buffer, size);
    if (body.row != 0) {
        blob values = values_of(data, come, body.row);
        return put(id, where, values.data(), size, values);
    }
    put(id, where, data, size, bytes);
}

// `data` lies in `whole`, which stays for as long as the device reads it
void executor::put(uint64_t id, const place & where, const uint8_t * data, size_t size, blob & whole) {
    ggml_backend_tensor_set_async(devices[where.device].backend, tensor_range(where, size).get(), data, 0, size);
    if (under_way.leaves(where.device)) {
        recent.wrote(where, data, size);
    }
    under_way.keep(where.device, id, std::move(whole));
}

// They are there when the device has done what it has been given
std::shared_ptr<blob> executor::get(const place & where, uint32_t size) {
    auto data = std::make_shared<blob>(size);
    if (size > 0) {
        ggml_backend_tensor_get_async(
            devices[where.device].backend, tensor_range(where, size).get(), data->data(), 0, size);
    }
    return data;
}

void executor::read(uint64_t id, const read_body & body) {
    const place where = memory.find_piece("READ", body.buffer, body.offset, body.size);
    bytes_on_wire(body.size, body.row); // throws
    const traced copying("out", where.device);
    under_way.behind(where.device, id, [this, id, row = body.row, data = get(where, body.size)] {
        answer(message::data, id, on_wire(std::move(*data), row));
    });
}

void executor::copy(const copy_body & body) {
    const place from = memory.find(body.from_buffer, body.from_offset, body.size);
    const place to = memory.find(body.to_buffer, body.to_offset, body.size);
    if (from.buffer == to.buffer && from.data < to.data + body.size && to.data < from.data + body.size) {
        throw bad_message("COPY between places that overlap");
    }
    if (body.size == 0) {
        return;
    }
    const traced copying("in", to.device);
    recent.changed(to, body.size);
    if (from.device != to.device) {
        under_way.order(to.device, from.device); // what is there may still be read
    }
    // where two devices cannot copy to each other, ggml takes as much memory of this process
    const uint64_t most = from.device != to.device ? PIECE_BYTES : body.size;
    for (uint64_t done = 0; done < body.size; done += most) {
        const uint64_t size = std::min(body.size - done, most);
        const place first = { from.buffer, from.data + done, from.device };
        const place second = { to.buffer, to.data + done, to.device };
        ggml_backend_tensor_copy_async(devices[from.device].backend, devices[to.device].backend,
            tensor_range(first, size).get(), tensor_range(second, size).get());
    }
}

void executor::graph(uint64_t id, reader & in) {
    const auto body = graph_body::take(in);
    if (body.device >= devices.size()) {
        throw bad_message("GRAPH names a device that there is not");
    }
    traced reading("in", body.device);
    auto made = std::make_unique<stored_graph>(body, in, memory, devices[body.device]);
    reading.end();
    const stored_graph & kept = shelves[body.device].put(std::move(made));
    check_kept(shelves, devices);
    compute(id, kept, body.device);
}

void executor::compute(uint64_t id, const compute_body & body) {
    const stored_graph * kept = body.device < devices.size() ? shelves[body.device].find(body.uid) : nullptr;
    if (kept == nullptr || body.uid == 0) {
        throw bad_message("COMPUTE names a graph that is not kept");
    }
    compute(id, *kept, body.device);
}

void executor::compute(uint64_t id, const stored_graph & graph, uint32_t device) {
    doing.nodes = graph.nodes();
    traced computing("compute", device);
    const ggml_status status = graph.compute(devices[device].backend, recent);
    if (status == GGML_STATUS_ABORTED) {
        throw interrupted();
    }
    if (status != GGML_STATUS_SUCCESS) {
        throw std::runtime_error(std::string("the device failed: ") + ggml_status_to_string(status));
    }
    memory.computed();
    if (under_way.leaves(device)) {
        graph.forget_results(recent);
        under_way.behind(device, id, [device, began = computing.leave()] { trace_end("compute", device, began); });
    }
}

} // namespace mesh
