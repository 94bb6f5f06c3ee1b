// What an executor exchanges with other workers.
#include "executor.h"
#include "half_rows.h"
#include "sums.h"
#include "tensor_range.h"
#include "trace.h"

#include <algorithm>

namespace mesh {

// Before a device is given what nobody takes
static void need_neighbour(const exchange & others, uint32_t number) {
    const std::vector<uint32_t> numbers = others.numbers();
    if (std::find(numbers.begin(), numbers.end(), number) == numbers.end()) {
        throw bad_message("there is no neighbour " + std::to_string(number));
    }
}

void executor::push(uint64_t id, const push_body & body) {
    const place where = memory.find_piece("PUSH", body.buffer, body.offset, body.size);
    bytes_on_wire(body.size, body.row); // throws
    need_neighbour(others, body.neighbour);
    const traced copying("out", where.device);
    under_way.behind(where.device, id, [this, body, data = get(where, body.size)] {
        doing.pushes = body.neighbour + 1;
        others.push(body.neighbour, body.token, on_wire(std::move(*data), body.row));
        doing.pushes = 0;
    });
}

// What is wrong with it is not the head's fault
static blob from_neighbour(const take_body & body, blob data) {
    try {
        return in_buffer(std::move(data), body.row);
    } catch (const bad_message & error) {
        throw std::runtime_error("lost neighbour " + std::to_string(body.neighbour) + ": it pushed " + error.what());
    }
}

void executor::take(uint64_t id, const take_body & body) {
    const place where = memory.find_piece("TAKE", body.buffer, body.offset, body.size);
    const auto size = static_cast<uint32_t>(bytes_on_wire(body.size, body.row));
    doing.waits = body.neighbour + 1;
    traced waiting("wait", where.device);
    blob data = others.take(body.neighbour, body.token, size);
    waiting.end();
    doing.waits = 0;
    if (body.size > 0) {
        const traced copying("in", where.device);
        data = from_neighbour(body, std::move(data));
        const uint8_t * first = data.data();
        put(id, where, first, body.size, data);
    }
}

void executor::sum(uint64_t id, const sum_body & body) {
    const sum_task task = task_of(body);
    const place where = memory.find(body.buffer, body.offset, body.size);
    for (uint32_t one = 0; one < NEIGHBOURS; one++) {
        if (one != body.place && (body.members >> one & 1) != 0) {
            need_neighbour(others, one);
        }
    }
    for (auto & shelf : shelves) {
        shelf.expect_sums();
    }
    // 1. Values that this process can read and write: where they are, or a copy of what the device has computed
    const bool is_direct = ggml_backend_buffer_is_host(where.buffer) && !under_way.leaves(where.device);
    blob copied(is_direct ? 0 : body.size);
    auto * values = reinterpret_cast<float *>(is_direct ? where.data : copied.data());
    if (body.absent != 0) {
        std::memset(values, 0, body.size);
    } else if (!is_direct) {
        const traced copying("out", where.device);
        ggml_backend_t backend = devices[where.device].backend;
        ggml_backend_tensor_get_async(backend, tensor_range(where, body.size).get(), values, 0, body.size);
        ggml_backend_synchronize(backend);
    }
    // 2. The sums, and where they belong
    add_up(task, values, others, doing);
    recent.changed(where, body.size);
    if (!is_direct && body.size > 0) {
        put(id, where, copied.data(), body.size, copied);
    }
}

} // namespace mesh
