// Frames of the hostile head about memory: allocated, filled, written, read, loaded, pushed and taken.
#include "half_rows.h"
#include "mesh_files.h"
#include "mesh_session.h"

#include <algorithm>
#include <cstring>
#include <iterator>

using namespace mesh;

// A row for half rows, and how much goes then: whole rows
static uint32_t some_row(dice & chance, uint64_t & size) {
    const auto row = static_cast<uint32_t>(1 + chance.below(40));
    size = size / (sizeof(float) * row) * sizeof(float) * row;
    return row;
}

static constexpr uint32_t UNUSED = 1 << 20; // numbers of buffers that are in no undamaged frame

void mesh_session::allocate() {
    allocate_body body;
    body.size = dice_.of<uint64_t>({ 128 * 1024, 256 * 1024, 512 * 1024 });
    if (damaging && dice_.one_in(20)) {
        // what is accepted for all that is not used
        body.buffer = dice_.one_in(3) ? 0 : dice_.one_in(2) ? last_buffer : UNUSED + static_cast<uint32_t>(odd() >> 40);
        body.device = static_cast<uint32_t>(odd());
        valid = false;
    } else {
        body.buffer = ++last_buffer;
        buffers.push_back({ body.buffer, body.size });
    }
    give(body, "allocate");
}

void mesh_session::memory() {
    if (dice_.one_in(2) && buffers.size() > 1) {
        free_body body;
        body.buffer = buffers.back().number;
        if (hurt()) {
            body.buffer = UNUSED + static_cast<uint32_t>(odd() >> 40);
            valid = false;
        } else {
            buffers.pop_back();
        }
        return give(body, "free");
    }
    const buffer where = some_buffer();
    fill_body body;
    body.buffer = where.number;
    body.size = dice_.below(where.size);
    body.offset = dice_.below(where.size - body.size);
    if (hurt()) {
        (dice_.one_in(2) ? body.offset : body.size) = odd();
        valid = false;
    }
    give(body, "fill");
}

void mesh_session::data() {
    const buffer from = some_buffer();
    const buffer to = some_buffer();
    uint64_t size = dice_.below(4096);
    const uint32_t row = dice_.one_in(3) ? some_row(dice_, size) : 0;
    const uint64_t first = dice_.below(from.size / 2 - size);
    const uint64_t second = to.size / 2 + dice_.below(to.size / 2 - size);
    const bool bad = hurt();
    valid = !bad;
    switch (dice_.below(3)) {
    case 0: {
        write_body body;
        body.buffer = from.number;
        body.offset = bad ? odd() : first;
        body.row = row;
        blob bytes(bytes_on_wire(size, row));
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(dice_.next()); });
        for (size_t at = 0; row != 0 && at < bytes.size(); at += sizeof(uint16_t) * (row + 1)) {
            const auto exponent = static_cast<uint16_t>(dice_.below(HALF_EXPONENT + 1));
            std::memcpy(bytes.data() + at, &exponent, sizeof exponent);
        }
        if (bad && dice_.one_in(3)) {
            body.row = static_cast<uint32_t>(odd());
            damage(bytes);
        }
        return give(body, "write", bytes);
    }
    case 1: {
        read_body body;
        body.buffer = from.number;
        body.size = static_cast<uint32_t>(bad && dice_.one_in(2) ? odd() : size);
        body.offset = bad ? odd() : first;
        body.row = bad && dice_.one_in(3) ? static_cast<uint32_t>(odd()) : row;
        return give(body, "read");
    }
    default: {
        copy_body body;
        body.from_buffer = from.number;
        body.to_buffer = to.number;
        body.from_offset = bad && dice_.one_in(2) ? odd() : first;
        body.to_offset = bad ? odd() : second;
        body.size = bad && dice_.one_in(2) ? odd() : size;
        return give(body, "copy");
    }
    }
}

void mesh_session::load() {
    writer out;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        wire_load_entry entry;
        entry.buffer = some_buffer().number;
        entry.type = static_cast<uint32_t>(dice_.below(TYPE_COUNT));
        entry.offset = dice_.below(1000);
        entry.size = dice_.below(1000);
        if (dice_.one_in(2)) { // of the worker's file
            const auto & known = dice_.of(indexed_file().tensors);
            entry.type = known.type;
            entry.size = known.size;
            std::copy(known.hash.begin(), known.hash.end(), entry.hash);
        }
        entry.put(out);
    }
    if (hurt()) {
        damage(out.data);
    }
    give(load_body(), "load", out.data);
}

void mesh_session::load_parts() {
    writer out;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        const buffer where = some_buffer();
        wire_load_part part;
        part.buffer = where.number;
        part.type = static_cast<uint32_t>(dice_.below(TYPE_COUNT));
        part.offset = dice_.below(1000);
        part.piece = 1 + dice_.below(100);
        part.count = 1 + dice_.below(20);
        part.stride = part.piece + dice_.below(20);
        part.file_stride = part.piece + dice_.below(200);
        part.first = dice_.below(100);
        part.whole = part.first + part.count * part.file_stride;
        if (dice_.one_in(2)) { // of the worker's file
            const auto & known = dice_.of(indexed_file().tensors);
            part.type = known.type;
            part.whole = known.size;
            std::copy(known.hash.begin(), known.hash.end(), part.hash);
            part.piece = 1 + dice_.below(known.size / 2);
            part.file_stride = part.piece + dice_.below(known.size / 4);
            part.first = dice_.below(known.size - part.piece + 1);
            part.count = 1 + dice_.below((known.size - part.first - part.piece) / part.file_stride + 1);
            part.stride = part.piece + (part.count < 1000 ? dice_.below(10) : 0); // no buffer is smaller
        }
        if (hurt()) {
            uint64_t * const fields[] = { &part.offset, &part.whole, &part.first, &part.piece, &part.count,
                &part.stride, &part.file_stride };
            *fields[dice_.below(std::size(fields))] = odd();
            valid = false;
        }
        part.put(out);
    }
    if (hurt()) {
        damage(out.data);
    }
    give(load_parts_body(), "load parts", out.data);
}

// Some pushes to one neighbour, and what comes back for it
void mesh_session::pushes() {
    std::deque<push_body> sent;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        const buffer from = some_buffer();
        push_body body;
        body.neighbour = 1;
        body.buffer = from.number;
        uint64_t size = dice_.below(4096);
        body.row = dice_.one_in(3) ? some_row(dice_, size) : 0;
        body.size = static_cast<uint32_t>(size);
        body.offset = dice_.below(from.size - body.size);
        body.token = dice_.next();
        if (hurt()) {
            body.row = static_cast<uint32_t>(odd());
            valid = false;
        } else if (hurt()) {
            (dice_.one_in(2) ? body.buffer : body.size) = static_cast<uint32_t>(odd());
            valid = false;
        } else if (hurt()) {
            body.offset = odd();
            valid = false;
        } else if (hurt()) {
            body.neighbour = static_cast<uint32_t>(odd());
            valid = false;
        }
        give(body, "push");
        sent.push_back(body);
    }
    for (const auto & push : sent) {
        const buffer to = some_buffer();
        take_body body;
        body.neighbour = push.neighbour;
        body.buffer = to.number;
        body.size = push.size;
        body.row = push.row;
        body.offset = dice_.below(to.size - 4096);
        body.token = push.token;
        if (hurt()) {
            body.row = static_cast<uint32_t>(odd());
            valid = false;
        } else if (hurt()) {
            (dice_.one_in(2) ? body.buffer : body.size) = static_cast<uint32_t>(odd());
            valid = false;
        } else if (hurt()) {
            (dice_.one_in(2) ? body.offset : body.token) = odd();
            valid = false;
        }
        give(body, "take");
    }
}
