// The hostile head from its greeting to its last frame, and what damages the bytes of any of them.
#include "mesh_session.h"

#include "mesh_files.h"

#include <algorithm>
#include <cstring>

using namespace mesh;

mesh_session::mesh_session(uint64_t seed, const std::vector<lent_device> & devices, fuzz_totals & totals) :
    dice_(seed), totals(totals), files(indexed_file()), worker(devices, files, others, [](message, uint64_t, blob) {}),
    steps(static_cast<int>(dice_.within(1, 60))), damaging(!dice_.one_in(8)) {}

void mesh_session::run() {
    hello();
    for (int i = 0; i < steps && why.empty(); i++) {
        step();
    }
}

// As a channel does: what is too long or too short does not get as far as the worker
void mesh_session::give_bytes(uint16_t number, blob body, const char * name) {
    if (!why.empty()) {
        return;
    }
    what = name;
    if (damaging && dice_.one_in(60)) {
        body.resize(
            static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(body.size()) + dice_.within(-8, 8))), 0);
        valid = false;
    }
    totals.frames++;
    totals.valid += valid ? 1 : 0;
    wire_header header;
    header.id = ++last_id;
    if (damaging && dice_.one_in(200)) {
        header.id = 0;
        valid = false;
    }
    header.kind = number;
    header.size = static_cast<uint32_t>(body.size());
    uint32_t least;
    uint32_t most;
    if (!body_limits(number, sender::head, least, most) || body.size() < least || body.size() > most) {
        why = "length";
        return;
    }
    try {
        worker.handle(header, body);
        totals.accepted++;
        if (header.id == 0) {
            valid = true; // told as what must not happen
            why = "it was accepted without an id";
        }
    } catch (const std::exception & error) {
        why = error.what();
        why = why.empty() ? "?" : why;
    }
}

uint64_t mesh_session::odd() {
    return dice_.odd(dice_.below(10));
}

// Overwrites one field, or a bit, at a place where a field may be
void mesh_session::damage(blob & bytes) {
    if (bytes.size() < 8) {
        return;
    }
    const uint64_t value = odd();
    const size_t at = dice_.below(bytes.size() - 7);
    if (dice_.one_in(4)) {
        bytes[at] = static_cast<uint8_t>(bytes[at] ^ (1 << dice_.below(8)));
    } else {
        std::memcpy(bytes.data() + (at & ~static_cast<size_t>(3)), &value, dice_.of<size_t>({ 4, 4, 8 }));
    }
    valid = false;
}

void mesh_session::step() {
    valid = true;
    if (buffers.empty() || (buffers.size() < 3 && dice_.one_in(30))) {
        return allocate();
    }
    if (dice_.one_in(40)) {
        return give(meet_body(), "meet");
    }
    switch (dice_.below(20)) {
    case 18:
        return sum();
    case 19:
        return load_parts();
    case 0:
    case 1:
        return memory();
    case 2:
    case 3:
    case 4:
        return data();
    case 5:
        return load();
    case 6:
        return damaging ? noise() : data();
    case 7:
    case 8:
        return again();
    case 9:
    case 10:
        return pushes();
    default:
        return graph();
    }
}

void mesh_session::hello() {
    hello_body body;
    body.version = VERSION;
    std::string release = ggml_version();
    if (damaging && dice_.one_in(50)) {
        release += "x";
        valid = false;
    }
    give(body, "hello", blob(release.begin(), release.end()));
}

void mesh_session::noise() {
    blob bytes(dice_.below(400));
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(dice_.next()); });
    valid = false;
    give_bytes(static_cast<uint16_t>(dice_.below(20)), bytes, "noise");
}
