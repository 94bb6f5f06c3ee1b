// Bytes from and to workers, as they are or as half rows, and from one worker to another.
#include "activations.h"
#include "answered_values.h"
#include "client.h"
#include "finite.h"
#include "half_rows.h"

#include "ggml.h"

#include <algorithm>

namespace mesh {

uint64_t offset_in(const client_buffer * buffer, const ggml_tensor * tensor) {
    return reinterpret_cast<uint64_t>(tensor->data) - buffer->base;
}

// The most bytes of a buffer that go at once: whole rows, if there are rows
static uint64_t piece_of(uint32_t row) {
    return row == 0 ? PIECE_BYTES : PIECE_BYTES / (sizeof(float) * row) * sizeof(float) * row;
}

// From `offset` of the tensor on, as they are or as half rows
static void write_pieces(
    const ggml_tensor * tensor, const uint8_t * data, uint64_t offset, uint64_t size, uint32_t row) {
    const client_buffer * own = buffer_of(tensor);
    std::vector<uint8_t> halves(row == 0 ? 0 : bytes_on_wire(std::min(size, piece_of(row)), row));
    for (uint64_t done = 0; done < size; done += piece_of(row)) {
        write_body body;
        body.buffer = own->number;
        body.row = row;
        body.offset = offset_in(own, tensor) + offset + done;
        const uint64_t piece = std::min(size - done, piece_of(row));
        if (row != 0) {
            to_half_rows(data + done, piece, row, halves.data());
        }
        own->device->worker->link.send(body, row == 0 ? data + done : halves.data(), bytes_on_wire(piece, row));
    }
}

// As above, the other way; `target` gets what comes on the wire
static bool read_pieces(const ggml_tensor * tensor, uint8_t * target, uint64_t offset, uint64_t size, uint32_t row) {
    const client_buffer * own = buffer_of(tensor);
    client_device & device = *own->device;
    if (device.worker->check->skips_result(device.wanted)) {
        std::memset(target, 0, bytes_on_wire(size, row));
        return true;
    }
    if (!device.worker->loading.settle()) {
        return false;
    }
    const remote_place where = place_of(tensor);
    const int64_t limit = ggml_is_contiguous(tensor) ? limit_of_places(tensor) : 0; // what is between may be anything
    for (uint64_t done = 0; done < size; done += piece_of(row)) {
        read_body body;
        body.buffer = where.buffer;
        body.offset = where.offset + offset + done;
        body.size = static_cast<uint32_t>(std::min(size - done, piece_of(row)));
        body.row = row;
        uint8_t * piece = target + bytes_on_wire(done, row);
        if (device.worker->link.ask_places(body, piece, bytes_on_wire(body.size, row), limit) == 0) {
            return false;
        }
    }
    return true;
}

void write_tensor(const ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    write_pieces(tensor, static_cast<const uint8_t *>(data), offset, size, 0);
}

bool read_tensor(const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    return read_pieces(tensor, static_cast<uint8_t *>(data), offset, size, 0);
}

// Known to the daemon (meshd/head/leases.py): the worker, or one that pushes to it
static constexpr char SENT_WRONG[] = "it sent values that are not finite";

bool read_activation(const ggml_tensor * tensor, void * data) {
    const uint32_t row = row_of_activation(tensor);
    if (row == 0) {
        return false;
    }
    connection & link = buffer_of(tensor)->device->worker->link;
    const uint64_t size = ggml_nbytes(tensor);
    std::vector<uint8_t> halves(bytes_on_wire(size, row));
    if (!read_pieces(tensor, halves.data(), 0, size, row) || !link.wait_all()) {
        std::memset(data, 0, size); // as get_tensor()
    } else if (!from_half_rows(halves.data(), size, row, data)) {
        std::memset(data, 0, size);
        link.lose("it sends half floats with an exponent that there is not");
    }
    check_read(tensor, data);
    return true;
}

// One that is infinite or no number makes all that is computed with it worthless, also for other answers that share a
// cache, and sorts of CPUs leave their memory over it: that of the next worker, which refuses and would be the one that
// is lost, or llama-server's own. A model may overflow by itself; but then its answers are lost anyway, and its device
// is the one to look at. A state of 2304 bytes takes 0.07 us, 64 MiB of a prompt 3 ms
static bool is_finite(const ggml_tensor * tensor, const void * data) {
    return !is_activation(tensor) || are_finite(static_cast<const float *>(data), ggml_nbytes(tensor) / sizeof(float));
}

void check_read(const ggml_tensor * tensor, void * data) {
    const char * why = is_finite(tensor, data) ? nullptr : SENT_WRONG;
    if (!ggml_is_contiguous(tensor) && !are_places(tensor, data)) { // the others were looked at when they came
        why = "it answers with a place that there is not";
    }
    if (why != nullptr) {
        std::memset(data, 0, ggml_nbytes(tensor)); // as get_tensor()
        buffer_of(tensor)->device->worker->link.lose(why);
    }
}

bool write_activation(const ggml_tensor * from, const ggml_tensor * to) {
    const uint32_t row = row_of_activation(from);
    if (row == 0 || buffer_of(to) == nullptr || to->type != from->type || !ggml_is_contiguous(to) ||
        ggml_nbytes(from) != ggml_nbytes(to)) {
        return false;
    }
    if (ggml_backend_buffer_is_host(from->buffer)) {
        write_pieces(to, static_cast<const uint8_t *>(from->data), 0, ggml_nbytes(from), row);
        return true;
    }
    std::vector<uint8_t> values(ggml_nbytes(from));
    ggml_backend_tensor_get(from, values.data(), 0, values.size());
    write_pieces(to, values.data(), 0, values.size(), row);
    return true;
}

static std::mutex between_workers;

static uint64_t next_token() {
    static uint64_t last = 0;
    return ++last;
}

pair_order::pair_order() : lock(between_workers), token(next_token()) {}

// Piece by piece: the source's worker pushes, the target's takes
static bool push_tensor(const client_buffer * source, const remote_place & from, const client_buffer * target,
    uint64_t to, uint64_t size, uint32_t row) {
    client_worker & sender = *source->device->worker;
    client_worker & receiver = *target->device->worker;
    for (uint64_t done = 0; done < size; done += piece_of(row)) {
        push_body push;
        push.neighbour = receiver.place;
        push.buffer = from.buffer;
        push.size = static_cast<uint32_t>(std::min(size - done, piece_of(row)));
        push.row = row;
        push.offset = from.offset + done;
        take_body take;
        take.neighbour = sender.place;
        take.buffer = target->number;
        take.size = push.size;
        take.row = row;
        take.offset = to + done;
        // before the lock: who does not read keeps nobody else waiting
        if (!sender.link.wait_for_room() || !receiver.link.wait_for_room()) {
            return false;
        }
        const pair_order order;
        push.token = take.token = order.token;
        // one right after the other, so that no two workers ever wait for each other
        if (!sender.link.push_to(receiver.link, push, take)) {
            return false;
        }
    }
    return true;
}

bool are_neighbours(const client_worker & one, const client_worker & other) {
    return one.neighbours.count(other.place) != 0 && other.neighbours.count(one.place) != 0;
}

bool copy_tensor(const ggml_tensor * from, const ggml_tensor * to) {
    const client_buffer * source = buffer_of(from);
    const client_buffer * target = buffer_of(to);
    if (source == nullptr || target == nullptr || !ggml_is_contiguous(from) || !ggml_is_contiguous(to) ||
        ggml_nbytes(from) != ggml_nbytes(to)) {
        return false;
    }
    client_worker & worker = *source->device->worker;
    const bool within = target->device->worker == &worker;
    if (!within && !are_neighbours(worker, *target->device->worker)) {
        return false;
    }
    if (worker.check->skips_result(source->device->wanted)) {
        return true;
    }
    worker.loading.settle();
    if (!within) {
        return push_tensor(
            source, place_of(from), target, offset_in(target, to), ggml_nbytes(from), row_of_activation(from));
    }
    copy_body body;
    const remote_place where = place_of(from);
    body.from_buffer = where.buffer;
    body.to_buffer = target->number;
    body.from_offset = where.offset;
    body.to_offset = offset_in(target, to);
    body.size = ggml_nbytes(from);
    return worker.link.send(body);
}

} // namespace mesh
