// What a hostile client sends, byte for byte, which frame comes next, and what it learns from the answers.
#include "rpc_session.h"

#include "poison.h"
#include "rpc_server.h"
#include "rpc_wire.h"

#include <algorithm>
#include <cstring>

rpc_session::rpc_session(uint64_t seed, fuzz_totals & totals) :
    dice_(seed), totals(totals), n_steps((int) dice_.within(1, 60)), damaging(!dice_.one_in(8)) {}

// Among the odd numbers, too: a buffer's handle, and an address in it
uint64_t rpc_session::odd() {
    const uint64_t kind = dice_.below(12);
    switch (kind) {
    case 8:
        return buffers.empty() ? 0 : some_buffer().handle;
    case 9:
        return buffers.empty() ? 0 : some_buffer().base + dice_.below(70000);
    default:
        return dice_.odd(kind < 8 ? kind : kind - 2);
    }
}

// Overwrites one field, or a few bits, at a place where a field may be
void rpc_session::damage(void * fields, size_t size) {
    uint8_t * bytes = (uint8_t *) fields;
    const uint64_t value = odd();
    const size_t width = dice_.of<size_t>({ 1, 2, 4, 4, 8, 8 });
    if (size < 8) {
        return;
    }
    const size_t at = dice_.below(size - 7);
    if (dice_.one_in(4)) {
        bytes[at] ^= (uint8_t) (1 << dice_.below(8));
    } else {
        memcpy(bytes + (at & ~(size_t) 3), &value, width);
    }
}

void rpc_session::frame(uint8_t cmd, const void * data, size_t size, const char * name, size_t expected) {
    uint64_t length = size;
    what = name;
    reply = expected;
    if (damaging && dice_.one_in(60)) { // a length that is not the one of the message
        length = dice_.one_in(2) ? odd() : size + (uint64_t) dice_.within(-8, 8);
        valid = false;
        lied = length != size;
    }
    out = packed(cmd, length, data, size);
    sent = 0;
    totals.frames++;
    totals.valid += valid;
}

bool rpc_session::read(void * data, size_t size) {
    uint8_t * to = (uint8_t *) data;
    while (size > 0) {
        if (sent == out.size()) {
            if (hung_up || lied) { // there is no more, although the length said so
                hung_up = true;
                return false;
            }
            if (step > 0) { // it asks for the next command
                totals.accepted++;
                take_reply();
            }
            if (step > n_steps) {
                hung_up = true;
                return false;
            }
            next_frame();
            step++;
        }
        const size_t n = std::min(size, out.size() - sent);
        memcpy(to, out.data() + sent, n);
        to += n;
        size -= n;
        sent += n;
    }
    return true;
}

void rpc_session::write(const void * data, size_t size) {
    // answers to what was asked without damage are short
    if (in.size() + size <= 4096) {
        in.insert(in.end(), (const uint8_t *) data, (const uint8_t *) data + size);
    }
}

void rpc_session::take_reply() {
    if (reply > 0 && in.size() == 8 + reply && what == "alloc_buffer") {
        rpc_msg_alloc_buffer_rsp rsp;
        memcpy(&rsp, in.data() + 8, sizeof(rsp));
        if (rsp.remote_ptr != 0) {
            buffers.push_back({ rsp.remote_ptr, 0, rsp.remote_size, last_base() });
        }
    } else if (reply > 0 && in.size() == 8 + reply && what == "alloc_buffer_as") {
        rpc_msg_alloc_buffer_as_rsp rsp;
        memcpy(&rsp, in.data() + 8, sizeof(rsp));
        if (rsp.size != 0) {
            buffers.push_back({ own_handle, 0, rsp.size, last_base() });
        }
    } else if (reply > 0 && in.size() == 8 + reply && what == "buffer_get_base" && !buffers.empty()) {
        memcpy(&buffers.back().base, in.data() + 8, sizeof(uint64_t));
    }
    in.clear();
    reply = 0;
    for (const auto & gap : apart) {
        ASAN_UNPOISON_MEMORY_REGION((void *) gap.first, gap.second);
    }
    apart.clear();
}

void rpc_session::next_frame() {
    valid = true;
    if (!later.empty()) {
        out = std::move(later.front().bytes);
        what = later.front().what;
        valid = later.front().valid;
        apart = later.front().apart;
        for (const auto & gap : apart) {
            ASAN_POISON_MEMORY_REGION((void *) gap.first, gap.second);
        }
        sent = 0;
        later.erase(later.begin());
        totals.frames++;
        totals.valid += valid;
        return;
    }
    if (step == 0) {
        return hello();
    }
    if (!buffers.empty() && buffers.back().base == 0) {
        rpc_msg_buffer_get_base_req request = { buffers.back().handle };
        return frame(RPC_CMD_BUFFER_GET_BASE, request, "buffer_get_base", sizeof(rpc_msg_buffer_get_base_rsp));
    }
    if (buffers.empty() || (buffers.size() < 3 && dice_.one_in(30))) {
        rpc_msg_alloc_buffer_req request = { 0, dice_.of<uint64_t>({ 128 * 1024, 256 * 1024, 512 * 1024 }) };
        if (extended && dice_.one_in(2)) {
            own_handle += RPC_HANDLE_SPACE;
            rpc_msg_alloc_buffer_as_req as = { 0, 0, request.size, own_handle };
            return frame(RPC_CMD_ALLOC_BUFFER_AS, as, "alloc_buffer_as", sizeof(rpc_msg_alloc_buffer_as_rsp));
        }
        return frame(RPC_CMD_ALLOC_BUFFER, request, "alloc_buffer", sizeof(rpc_msg_alloc_buffer_rsp));
    }
    switch (dice_.below(20)) {
    case 0:
        return query();
    case 1:
    case 2:
        return memory();
    case 3:
    case 4:
    case 5:
    case 6:
        return data();
    case 7:
        return load();
    case 8:
        return damaging ? noise() : query();
    case 9:
        return peers();
    case 10:
        return ask();
    case 11:
        return half_rows();
    default:
        return graph();
    }
}

void rpc_session::hello() {
    rpc_msg_hello_req request = {};
    memcpy(request.conn_caps + RPC_EXT_OFFSET, RPC_EXT_MAGIC, sizeof(RPC_EXT_MAGIC));
    request.conn_caps[RPC_EXT_OFFSET + 2] = 0xff;
    if (damaging && dice_.one_in(50)) {
        damage(&request, sizeof(request));
        valid = false;
        extended = false; // perhaps
    }
    frame(RPC_CMD_HELLO, request, "hello");
}

void rpc_session::noise() {
    std::vector<uint8_t> bytes(dice_.below(400));
    for (auto & b : bytes) {
        b = (uint8_t) dice_.next();
    }
    valid = false;
    frame((uint8_t) (dice_.one_in(3) ? dice_.below(256) : dice_.below(RPC_CMD_COUNT)), bytes.data(), bytes.size(),
        "noise", 0);
}
