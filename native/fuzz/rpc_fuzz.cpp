// Feeds an RPC server, in this process, with sessions of a hostile client.
//
//     rpc_fuzz [--frames N] [--seconds N] [--seed N] [--first N | --session N] [--threads N]
//
// The server is the real one: its source is compiled in here, only the transport is another. Each session is made from
// the seed and its number alone; when one crashes, `--seed S --session N` repeats it. The exit status is 1 when an
// undamaged frame was refused.

#include "server.h"
#include "session.h"
#include "wire.h"

#if defined(__SANITIZE_ADDRESS__)
#  include <sanitizer/asan_interface.h>
#else
#  define ASAN_POISON_MEMORY_REGION(start, size)   ((void) (start), (void) (size))
#  define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void) (start), (void) (size))
#endif

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sys/resource.h>

// The transport

struct socket_t::impl {
    fuzz_session * session = nullptr;
};

static fuzz_session * next_session; // whom connect() connects to

socket_t::socket_t(std::unique_ptr<impl> p) : pimpl(std::move(p)) {}
socket_t::~socket_t() = default;
bool socket_t::send_data(const void * data, size_t size) { pimpl->session->write(data, size); return true; }
bool socket_t::recv_data(void * data, size_t size) { return pimpl->session->read(data, size); }
bool socket_t::recv_data_within(void * data, size_t size, int) { return recv_data(data, size); }
bool socket_t::flush() { return true; }
void socket_t::limit_send(int) {}
void socket_t::shutdown() {}
void socket_t::shutdown_sending() {}
bool socket_t::wait_hangup() { return false; }
bool socket_t::is_hung_up() { return false; }
socket_ptr socket_t::accept() { return nullptr; }
void socket_t::get_caps(uint8_t *) {}
void socket_t::update_caps(const uint8_t *) {}
socket_ptr socket_t::create_server(const char *, int) { return nullptr; }
socket_ptr socket_t::adopt_server(int) { return nullptr; }
socket_ptr socket_t::connect(const char *, int) {
    auto p = std::make_unique<impl>();
    p->session = next_session;
    return socket_ptr(new socket_t(std::move(p)));
}
bool rpc_transport_init() { return true; }
void rpc_transport_shutdown() {}

// The client

fuzz_session::fuzz_session(uint64_t seed, fuzz_totals & totals)
    : dice_(seed), totals(totals), n_steps((int) dice_.within(1, 60)), damaging(!dice_.one_in(8)) {}

// what numbers are tried where another one belongs
uint64_t fuzz_session::odd() {
    switch (dice_.below(12)) {
        case 0:  return 0;
        case 1:  return 1;
        case 2:  return dice_.below(300);
        case 3:  return 1ull << dice_.below(64);
        case 4:  return (1ull << dice_.below(64)) - 1;
        case 5:  return ~0ull - dice_.below(64);
        case 6:  return INT32_MAX - dice_.below(3);
        case 7:  return (uint64_t) -dice_.within(1, 5000);
        case 8:  return buffers.empty() ? 0 : some_buffer().handle;
        case 9:  return buffers.empty() ? 0 : some_buffer().base + dice_.below(70000);
        case 10: return 0x7fc00000; // NaN
        default: return dice_.next();
    }
}

// Overwrites one field, or a few bits, at a place where a field may be
void fuzz_session::damage(void * fields, size_t size) {
    uint8_t * bytes = (uint8_t *) fields;
    const uint64_t value = odd();
    const size_t   width = dice_.of<size_t>({ 1, 2, 4, 4, 8, 8 });
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

void fuzz_session::frame(uint8_t cmd, const void * data, size_t size, const char * name, size_t expected) {
    uint64_t length = size;
    what  = name;
    reply = expected;
    if (damaging && dice_.one_in(60)) { // a length that is not the one of the message
        length = dice_.one_in(2) ? odd() : size + (uint64_t) dice_.within(-8, 8);
        valid  = false;
        lied   = length != size;
    }
    out  = packed(cmd, length, data, size);
    sent = 0;
    totals.frames++;
    totals.valid += valid;
}

bool fuzz_session::read(void * data, size_t size) {
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
        to   += n;
        size -= n;
        sent += n;
    }
    return true;
}

void fuzz_session::write(const void * data, size_t size) {
    // answers to what was asked without damage are short
    if (in.size() + size <= 4096) {
        in.insert(in.end(), (const uint8_t *) data, (const uint8_t *) data + size);
    }
}

void fuzz_session::take_reply() {
    if (reply > 0 && in.size() == 8 + reply && what == "alloc_buffer") {
        rpc_msg_alloc_buffer_rsp rsp;
        memcpy(&rsp, in.data() + 8, sizeof(rsp));
        if (rsp.remote_ptr != 0) {
            buffers.push_back({ rsp.remote_ptr, 0, rsp.remote_size, last_base });
        }
    } else if (reply > 0 && in.size() == 8 + reply && what == "alloc_buffer_as") {
        rpc_msg_alloc_buffer_as_rsp rsp;
        memcpy(&rsp, in.data() + 8, sizeof(rsp));
        if (rsp.size != 0) {
            buffers.push_back({ own_handle, 0, rsp.size, last_base });
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

void fuzz_session::next_frame() {
    valid = true;
    if (!later.empty()) {
        out   = std::move(later.front().bytes);
        what  = later.front().what;
        valid = later.front().valid;
        apart = later.front().apart;
        for (const auto & gap : apart) {
            ASAN_POISON_MEMORY_REGION((void *) gap.first, gap.second);
        }
        sent  = 0;
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
        rpc_msg_alloc_buffer_req request = { 0, dice_.of<uint64_t>({ 128*1024, 256*1024, 512*1024 }) };
        if (extended && dice_.one_in(2)) {
            own_handle += RPC_HANDLE_SPACE;
            rpc_msg_alloc_buffer_as_req as = { 0, 0, request.size, own_handle };
            return frame(RPC_CMD_ALLOC_BUFFER_AS, as, "alloc_buffer_as", sizeof(rpc_msg_alloc_buffer_as_rsp));
        }
        return frame(RPC_CMD_ALLOC_BUFFER, request, "alloc_buffer", sizeof(rpc_msg_alloc_buffer_rsp));
    }
    switch (dice_.below(20)) {
        case 0:  return query();
        case 1:
        case 2:  return memory();
        case 3:
        case 4:
        case 5:
        case 6:  return data();
        case 7:  return load();
        case 8:  return damaging ? noise() : query();
        case 9:  return peers();
        case 10: return ask();
        case 11: return half_rows();
        default: return graph();
    }
}

void fuzz_session::hello() {
    rpc_msg_hello_req request = {};
    memcpy(request.conn_caps + RPC_EXT_OFFSET, RPC_EXT_MAGIC, sizeof(RPC_EXT_MAGIC));
    request.conn_caps[RPC_EXT_OFFSET + 2] = 0xff;
    if (damaging && dice_.one_in(50)) {
        damage(&request, sizeof(request));
        valid    = false;
        extended = false; // perhaps
    }
    frame(RPC_CMD_HELLO, request, "hello");
}

void fuzz_session::noise() {
    std::vector<uint8_t> bytes(dice_.below(400));
    for (auto & b : bytes) {
        b = (uint8_t) dice_.next();
    }
    valid = false;
    frame((uint8_t) (dice_.one_in(3) ? dice_.below(256) : dice_.below(RPC_CMD_COUNT)), bytes.data(), bytes.size(), "noise", 0);
}

void fuzz_session::query() {
    uint32_t device = 0;
    if (hurt()) {
        device = (uint32_t) odd();
        valid  = false;
    }
    switch (dice_.below(5)) {
        case 0:  return frame(RPC_CMD_DEVICE_COUNT, nullptr, 0, "device_count", 4);
        case 1:  return frame(RPC_CMD_GET_ALIGNMENT, device, "get_alignment", 8);
        case 2:  return frame(RPC_CMD_GET_MAX_SIZE, device, "get_max_size", 8);
        case 3:  return frame(RPC_CMD_GET_DEVICE_MEMORY, device, "get_device_memory", 16);
        default: valid = false; return frame(RPC_CMD_GRAPH_RECOMPUTE, device, "graph_recompute", 0);
    }
}

// A session that has named itself would wait in TAKE_TENSOR for data that do not come
void fuzz_session::peers() {
    const buffer b = some_buffer();
    rpc_tensor   t = plain_tensor(dice_, b.handle, b.base);
    uint64_t     offset = 0, size = size_of(t), number = dice_.below(3);
    if (hurt()) {
        damage_tensor(dice_, t, odd(), { t.id });
        (dice_.one_in(2) ? offset : size) = odd();
        number = odd();
    }
    valid = extended;
    switch (dice_.below(4)) {
        case 0: return frame(RPC_CMD_PEER_CHECK, rpc_msg_peer_check_req { (uint32_t) number, 0, {} }, "peer_check", 1);
        case 1:
            valid = valid && !named;
            named = true;
            return frame(RPC_CMD_PEER_SESSION, rpc_msg_peer_session_req {}, "peer_session");
        case 2:
            valid = false; // nothing was agreed on
            return frame(RPC_CMD_PUSH_TENSOR, rpc_msg_push_tensor_req { t, offset, size, odd(), (uint32_t) number, 0 }, "push_tensor");
        default:
            if (named) {
                return query();
            }
            valid = false;
            return frame(RPC_CMD_TAKE_TENSOR, rpc_msg_take_tensor_req { t, offset, size, odd() }, "take_tensor");
    }
}

void fuzz_session::memory() {
    uint64_t handle = some_buffer().handle;
    if (hurt()) {
        handle = odd();
        valid  = false;
    }
    switch (dice_.below(damaging ? 5 : 4)) {
        case 4: {
            uint64_t any = odd();
            if (any > own_handle && any % RPC_HANDLE_SPACE == 0) {
                any++; // a good one that comes up again later would be refused then
            }
            rpc_msg_alloc_buffer_as_req request = { 0, 0, 1 + dice_.below(1 << 16), any };
            valid = false;
            return frame(RPC_CMD_ALLOC_BUFFER_AS, request, "alloc_buffer_as, any handle");
        }
        case 0: {
            rpc_msg_buffer_clear_req request = { handle, (uint8_t) dice_.next() };
            return frame(RPC_CMD_BUFFER_CLEAR, request, "buffer_clear");
        }
        case 1: {
            if (buffers.size() < 2 || !valid) {
                return query();
            }
            rpc_msg_free_buffer_req request = { handle };
            buffers.erase(std::find_if(buffers.begin(), buffers.end(), [&](const buffer & b) { return b.handle == handle; }));
            return frame(RPC_CMD_FREE_BUFFER, request, "free_buffer");
        }
        case 2: {
            rpc_msg_alloc_buffer_req request = { 0, 1 + dice_.below(1 << 16) };
            if (!valid) {
                damage(&request, sizeof(request));
            }
            return frame(RPC_CMD_ALLOC_BUFFER, request, "alloc_buffer, not used");
        }
        default: {
            rpc_msg_buffer_get_base_req request = { handle };
            return frame(RPC_CMD_BUFFER_GET_BASE, request, "buffer_get_base again", 8);
        }
    }
}

void fuzz_session::data() {
    const buffer b = some_buffer();
    const uint64_t room = b.size/2 - 32768;
    rpc_tensor t = plain_tensor(dice_, b.handle, b.base + 32*dice_.below(room/32));
    rpc_tensor u = t;
    u.data = t.data + 32768;
    uint64_t offset = 4*dice_.below(size_of(t)/4), size = size_of(t) - offset;
    std::vector<uint64_t> ids = { t.id };
    const bool bad = hurt();
    if (bad && dice_.one_in(2)) {
        damage_tensor(dice_, dice_.one_in(2) ? t : u, odd(), ids);
    } else if (bad) {
        (dice_.one_in(2) ? offset : size) = odd();
    }
    valid = !bad;
    switch (dice_.below(7)) {
        case 0: return frame(RPC_CMD_GET_TENSOR, rpc_msg_get_tensor_req { t, offset, size }, "get_tensor", size);
        case 1: return frame(RPC_CMD_MEMSET_TENSOR, rpc_msg_memset_tensor_req { t, offset, size, (uint8_t) dice_.next() }, "memset_tensor");
        case 2: return frame(RPC_CMD_COPY_TENSOR, rpc_msg_copy_tensor_req { t, u }, "copy_tensor", 1);
        case 3: return frame(RPC_CMD_INIT_TENSOR, rpc_msg_init_tensor_req { t }, "init_tensor");
        case 4: return frame(RPC_CMD_SET_TENSOR_HASH, rpc_msg_set_tensor_hash_req { t, offset, dice_.next() }, "set_tensor_hash", 1);
        case 5: {
            rpc_msg_get_alloc_size_req request = {};
            request.tensor  = t;
            request.srcs[0] = u;
            if (dice_.one_in(2)) {
                request.tensor.op = GGML_OP_SQR;
            } else {
                request.srcs[0].id = 0;
            }
            return frame(RPC_CMD_GET_ALLOC_SIZE, request, "get_alloc_size", 8);
        }
        default: {
            const size_t n = (size_t) std::min<uint64_t>(size, 4096);
            std::vector<uint8_t> message(sizeof(rpc_msg_set_tensor_header) + n);
            rpc_msg_set_tensor_header header = { t, (uint8_t) dice_.below(2), offset };
            memcpy(message.data(), &header, sizeof(header));
            for (size_t i = sizeof(header); i < message.size(); i++) {
                message[i] = (uint8_t) dice_.next();
            }
            return frame(RPC_CMD_SET_TENSOR, message.data(), message.size(), "set_tensor", 0);
        }
    }
}

// All of a tensor as half floats, to it and from it, and between two servers, which was never agreed on
void fuzz_session::half_rows() {
    const buffer b = some_buffer();
    rpc_tensor t = plain_tensor(dice_, b.handle, b.base + 32*dice_.below((b.size - 32768)/32));
    const uint64_t rows = size_of(t)/4/t.ne[0];
    uint64_t offset = 0, size = 2*rows*(t.ne[0] + 1);
    std::vector<uint16_t> words(size/2);
    for (size_t i = 0; i < words.size(); i++) {
        words[i] = (uint16_t) (i % (t.ne[0] + 1) == 0 ? dice_.below(RPC_HALF_MAX_EXPONENT + 1) : dice_.next());
    }
    valid = extended;
    if (hurt()) {
        valid = false;
        switch (dice_.below(3)) {
            case 0:  damage_tensor(dice_, t, odd(), { t.id }); break;
            case 1:  (dice_.one_in(2) ? offset : size) = odd(); break;
            default: words[dice_.below(words.size())] = (uint16_t) odd(); break;
        }
    }
    switch (dice_.below(named ? 3 : 4)) {
        case 0:  return frame(RPC_CMD_GET_TENSOR_F16, rpc_msg_get_tensor_req { t, offset, size }, "get_tensor_f16", size);
        case 1: {
            std::vector<uint8_t> message(sizeof(rpc_msg_set_tensor_header) + words.size()*sizeof(uint16_t));
            rpc_msg_set_tensor_header header = { t, 0, offset };
            memcpy(message.data(), &header, sizeof(header));
            memcpy(message.data() + sizeof(header), words.data(), words.size()*sizeof(uint16_t));
            return frame(RPC_CMD_SET_TENSOR_F16, message.data(), message.size(), "set_tensor_f16", 0);
        }
        case 2:
            valid = false;
            return frame(RPC_CMD_PUSH_TENSOR_F16, rpc_msg_push_tensor_req { t, offset, size, odd(), (uint32_t) dice_.below(3), 0 }, "push_tensor_f16");
        default:
            valid = false;
            return frame(RPC_CMD_TAKE_TENSOR_F16, rpc_msg_take_tensor_req { t, offset, size, odd() }, "take_tensor_f16");
    }
}

void fuzz_session::load() {
    std::vector<uint8_t> message(sizeof(rpc_load_header) + dice_.within(1, 4)*sizeof(rpc_load_tensor));
    rpc_load_header header = { (uint32_t) ((message.size() - sizeof(header))/sizeof(rpc_load_tensor)), 0 };
    for (uint32_t i = 0; i < header.n_tensors; i++) {
        const buffer & b = some_buffer();
        rpc_load_tensor t = {};
        t.buffer = b.handle;
        t.data   = b.base;
        t.type   = GGML_TYPE_Q4_0;
        t.ne[0]  = 32;
        t.ne[1]  = t.ne[2] = t.ne[3] = 2;
        t.size   = 8*18;
        memcpy(message.data() + sizeof(header) + i*sizeof(t), &t, sizeof(t));
    }
    memcpy(message.data(), &header, sizeof(header));
    if (hurt()) {
        damage(message.data(), message.size());
    }
    valid = false; // this server has no files, and says so
    frame(RPC_CMD_SET_TENSOR_GGUF, message.data(), message.size(), "set_tensor_gguf", 0);
}

// Frames that give index tensors valid numbers, or now and then others
void fuzz_session::indices_of(const std::vector<index_tensor> & tensors) {
    for (const auto & index : tensors) {
        const bool wide = index.tensor->type == GGML_TYPE_I64;
        std::vector<uint8_t> message(sizeof(rpc_msg_set_tensor_header) + ggml_nbytes(index.tensor));
        rpc_msg_set_tensor_header header = {};
        header.tensor.buffer = (uint64_t) index.tensor->buffer;
        header.tensor.data   = (uint64_t) index.tensor->data;
        header.tensor.type   = index.tensor->type;
        for (int i = 0; i < GGML_MAX_DIMS; i++) {
            header.tensor.ne[i] = (uint32_t) index.tensor->ne[i];
            header.tensor.nb[i] = (uint32_t) index.tensor->nb[i];
        }
        memcpy(message.data(), &header, sizeof(header));
        const bool bad = damaging && dice_.one_in(10);
        for (int64_t i = 0; i < ggml_nelements(index.tensor); i++) {
            int64_t value = (int64_t) dice_.below((uint64_t) index.limit);
            if (bad && dice_.one_in(3)) {
                value = dice_.one_in(2) ? index.limit + dice_.within(0, 2) : (int64_t) odd();
                valid = false;
            }
            memcpy(message.data() + sizeof(header) + i*(wide ? 8 : 4), &value, wide ? 8 : 4);
        }
        later.push_back({ packed(RPC_CMD_SET_TENSOR, message.size(), message.data(), message.size()), true, "indices", {} });
    }
}

void fuzz_session::graph() {
    const buffer b = some_buffer();
    std::vector<uint8_t> memory(ggml_tensor_overhead()*128 + ggml_graph_overhead_custom(128, false));
    ggml_context_ptr ctx { ggml_init({ memory.size(), memory.data(), true }) };
    ggml_cgraph * graph = ggml_new_graph_custom(ctx.get(), 128, false);
    std::vector<index_tensor> indices;
    ggml_tensor * last = nullptr;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        last = make_operation(ctx.get(), dice_, (int) dice_.below((uint64_t) n_operations()), last, indices);
        ggml_build_forward_expand(graph, last);
    }
    std::vector<ggml_tensor *> tensors;
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        collect(ggml_graph_node(graph, i), tensors);
    }
    // each has memory of its own, with a gap behind it
    std::vector<std::pair<uint64_t, uint64_t>> gaps;
    uint64_t used = 0;
    for (ggml_tensor * t : tensors) {
        t->buffer = (ggml_backend_buffer_t) b.handle;
        if (t->view_src == nullptr) {
            t->data = (void *) (b.base + used);
            const uint64_t end = used + ggml_nbytes(t);
            used = GGML_PAD(end, 32) + 64;
            gaps.push_back({ b.memory + end, used - end });
        } else {
            t->data = (char *) t->view_src->data + t->view_offs;
        }
    }
    if (used > b.size) {
        return query();
    }
    std::vector<rpc_tensor> wire;
    std::vector<uint64_t> ids, nodes;
    for (ggml_tensor * t : tensors) {
        wire.push_back(wire_tensor(t));
        ids.push_back(wire.back().id);
    }
    for (int i = 0; i < ggml_graph_n_nodes(graph); i++) {
        nodes.push_back((uint64_t) ggml_graph_node(graph, i));
    }
    indices_of(indices);
    const bool bad = damaging && dice_.one_in(2);
    uint32_t head[2] = { 0, (uint32_t) nodes.size() };
    uint32_t n_tensors = (uint32_t) wire.size();
    if (bad) {
        valid = false;
        for (int64_t n = dice_.within(1, 3); n > 0; n--) {
            switch (dice_.below(12)) {
                case 0:  nodes[dice_.below(nodes.size())] = dice_.one_in(2) ? odd() : ids[dice_.below(ids.size())]; break;
                case 1:  (dice_.one_in(3) ? head[0] : dice_.one_in(2) ? head[1] : n_tensors) = (uint32_t) odd(); break;
                default: damage_tensor(dice_, wire[dice_.below(wire.size())], odd(), ids); break;
            }
        }
    }
    std::vector<uint8_t> message;
    auto add = [&](const void * p, size_t n) { message.insert(message.end(), (const uint8_t *) p, (const uint8_t *) p + n); };
    add(head, sizeof(head));
    add(nodes.data(), nodes.size()*sizeof(uint64_t));
    add(&n_tensors, sizeof(n_tensors));
    add(wire.data(), wire.size()*sizeof(rpc_tensor));
    totals.graphs++;
    // the indices go first; only an undamaged graph keeps to its tensors
    const decltype(gaps) none;
    later.push_back({ packed(RPC_CMD_GRAPH_COMPUTE, message.size(), message.data(), message.size()), valid, "graph", valid ? gaps : none });
    next_frame();
}

// Asks whether some operations are supported
void fuzz_session::ask() {
    if (!extended) {
        return query();
    }
    std::vector<uint8_t> memory(ggml_tensor_overhead()*128), entries, tensors;
    ggml_context_ptr ctx { ggml_init({ memory.size(), memory.data(), true }) };
    rpc_op_header header = { 0, (uint32_t) dice_.within(1, 4), 0, 0 };
    auto add = [](std::vector<uint8_t> & to, const void * p, size_t n) { to.insert(to.end(), (const uint8_t *) p, (const uint8_t *) p + n); };
    std::vector<index_tensor> indices;
    for (uint32_t n = 0; n < header.n_ops; n++) {
        const ggml_tensor * op = make_operation(ctx.get(), dice_, (int) dice_.below((uint64_t) n_operations()), nullptr, indices);
        rpc_op_entry entry = { (uint32_t) op->op, 0, {} };
        memcpy(entry.op_params, op->op_params, sizeof(entry.op_params));
        for (int i = -1; i < GGML_MAX_SRC; i++) {
            const ggml_tensor * t = i < 0 ? op : op->src[i];
            if (t == nullptr) {
                continue;
            }
            const rpc_tensor on_wire = wire_tensor(t);
            rpc_op_tensor described = { on_wire.type, {}, {} };
            memcpy(described.ne, on_wire.ne, sizeof(described.ne));
            memcpy(described.nb, on_wire.nb, sizeof(described.nb));
            add(tensors, &described, sizeof(described));
            entry.sources |= i < 0 ? 0 : 1u << i;
            header.n_tensors++;
        }
        add(entries, &entry, sizeof(entry));
    }
    std::vector<uint8_t> message;
    add(message, &header, sizeof(header));
    add(message, entries.data(), entries.size());
    add(message, tensors.data(), tensors.size());
    for (int64_t n = dice_.within(1, 3); n > 0 && hurt(); n--) {
        damage(message.data(), message.size());
        valid = false;
    }
    frame(RPC_CMD_SUPPORTED_OPS, message.data(), message.size(), "supported_ops", header.n_ops);
}

// What is said last about a session that went wrong

static std::string last_log;

static void keep_log(ggml_log_level, const char * text, void *) {
    last_log = text;
}

static uint64_t seed    = 1;
static uint64_t session = 0;

static void say_where() {
    fprintf(stderr, "\nin --seed %" PRIu64 " --session %" PRIu64 ", frame `%s`; last log: %s\n", seed, session,
        next_session ? next_session->last().c_str() : "", last_log.c_str());
}

extern "C" void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));
extern "C" const char * __asan_default_options() {
    return "allocator_may_return_null=1:quarantine_size_mb=16:detect_leaks=1:abort_on_error=0";
}
extern "C" const char * __ubsan_default_options() {
    return "print_stacktrace=1:halt_on_error=1";
}

int main(int argc, char ** argv) {
    uint64_t frames = UINT64_MAX, seconds = UINT64_MAX, threads = 1;
    bool one = false;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string name  = argv[i];
        const uint64_t    value = strtoull(argv[i + 1], nullptr, 10);
        if (name == "--frames")       { frames = value; }
        else if (name == "--seconds") { seconds = value; }
        else if (name == "--seed")    { seed = value; }
        else if (name == "--threads") { threads = value; }
        else if (name == "--session") { session = value; one = true; }
        else if (name == "--first")   { session = value; }
        else { fprintf(stderr, "unknown option %s\n", argv[i]); return 2; }
    }
    ggml_log_set(keep_log, nullptr);
    ggml_set_abort_callback([](const char * text) { fprintf(stderr, "%s\n", text); say_where(); });
    if (__sanitizer_set_death_callback) {
        __sanitizer_set_death_callback(say_where);
    }
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    auto set_n_threads = (ggml_backend_set_n_threads_t) ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu)), "ggml_backend_set_n_threads");
    set_n_threads(cpu, (int) threads);
    rpc_server_shared shared { { cpu }, nullptr, rpc_memory({ 64u*1024*1024 }), {}, {}, {}, std::make_shared<rpc_peers>(), {} };
    shared.peers->allow({}); // it announces what has to do with peers; none ever comes
    shared.devices.push_back(rpc_describe(cpu));
    shared.weight_ops = rpc_find_weight_ops(cpu);

    fuzz_totals totals;
    int wrong = 0;
    const auto start = std::chrono::steady_clock::now();
    double elapsed = 0, shown = 0;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    long peak = usage.ru_maxrss; // KiB
    auto show = [&](FILE * to) {
        getrusage(RUSAGE_SELF, &usage);
        fprintf(to, "%" PRIu64 " frames, %.0f a second, %" PRIu64 " sessions, %" PRIu64 " graphs; accepted %" PRIu64 ", undamaged %" PRIu64 "; peak %ld MiB\n",
            totals.frames, totals.frames/elapsed, session, totals.graphs, totals.accepted, totals.valid, usage.ru_maxrss/1024);
        fflush(to);
    };
    do {
        fuzz_session client(seed*1000003 + session, totals);
        next_session = &client;
        const clock_t before = clock();
        rpc_serve_client(shared, socket_t::connect("", 0));
        if (client.refused_valid()) {
            wrong++;
            fprintf(stderr, "undamaged frame refused: ");
            say_where();
        }
        const clock_t took = (clock() - before)/CLOCKS_PER_SEC;
        if (took >= 2) {
            fprintf(stderr, "%ld s of computing ", (long) took);
            say_where();
        }
        getrusage(RUSAGE_SELF, &usage);
        if (usage.ru_maxrss > peak + 64*1024) {
            fprintf(stderr, "memory grew from %ld to %ld MiB ", peak/1024, usage.ru_maxrss/1024);
            say_where();
            peak = usage.ru_maxrss;
        }
        session++;
        elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        if (elapsed - shown > 30) {
            shown = elapsed;
            show(stderr);
        }
    } while (!one && wrong < 10 && totals.frames < frames && elapsed < seconds);
    show(stdout);
    ggml_backend_free(cpu);
    return wrong > 0;
}
