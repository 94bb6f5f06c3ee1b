#include "mesh_session.h"

#include "names.h"

#include "ggml-cpp.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(start, size) ((void) (start), (void) (size))
#define ASAN_UNPOISON_MEMORY_REGION(start, size) ((void) (start), (void) (size))
#endif

using namespace mesh;

static constexpr uint32_t UNUSED = 1 << 20; // numbers of buffers that are in no undamaged frame

mesh_session::mesh_session(uint64_t seed, const std::vector<lent_device> & devices, fuzz_totals & totals) :
    dice_(seed), totals(totals), worker(devices, no_files, others, [](message, uint64_t, std::vector<uint8_t>) {}),
    steps(static_cast<int>(dice_.within(1, 60))), damaging(!dice_.one_in(8)) {}

void mesh_session::run() {
    hello();
    for (int i = 0; i < steps && why.empty(); i++) {
        step();
    }
}

// As a channel does: what is too long or too short does not get as far as the worker
void mesh_session::give_bytes(uint16_t number, std::vector<uint8_t> body, const char * name) {
    if (!why.empty()) {
        return;
    }
    what = name;
    if (damaging && dice_.one_in(60)) {
        body.resize(static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(body.size()) + dice_.within(-8, 8))));
        valid = false;
    }
    totals.frames++;
    totals.valid += valid ? 1 : 0;
    wire_header header;
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
    } catch (const std::exception & error) {
        why = error.what();
        why = why.empty() ? "?" : why;
    }
}

// What numbers are tried where another one belongs
uint64_t mesh_session::odd() {
    switch (dice_.below(10)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
        return dice_.below(300);
    case 3:
        return 1ull << dice_.below(64);
    case 4:
        return (1ull << dice_.below(64)) - 1;
    case 5:
        return ~0ull - dice_.below(64);
    case 6:
        return INT32_MAX - dice_.below(3);
    case 7:
        return static_cast<uint64_t>(-dice_.within(1, 5000));
    case 8:
        return 0x7fc00000; // NaN
    default:
        return dice_.next();
    }
}

// Overwrites one field, or a bit, at a place where a field may be
void mesh_session::damage(std::vector<uint8_t> & bytes) {
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
    switch (dice_.below(18)) {
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
    give(body, "hello", std::vector<uint8_t>(release.begin(), release.end()));
}

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
    const uint64_t size = dice_.below(4096);
    const uint64_t first = dice_.below(from.size / 2 - size);
    const uint64_t second = to.size / 2 + dice_.below(to.size / 2 - size);
    const bool bad = hurt();
    valid = !bad;
    switch (dice_.below(3)) {
    case 0: {
        write_body body;
        body.buffer = from.number;
        body.offset = bad ? odd() : first;
        std::vector<uint8_t> bytes(size);
        std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(dice_.next()); });
        return give(body, "write", bytes);
    }
    case 1: {
        read_body body;
        body.buffer = from.number;
        body.size = static_cast<uint32_t>(bad && dice_.one_in(2) ? odd() : size);
        body.offset = bad ? odd() : first;
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
        entry.put(out);
    }
    if (hurt()) {
        damage(out.data);
    }
    give(load_body(), "load", out.data);
}

void echo::push(uint32_t number, uint64_t token, std::vector<uint8_t> data) {
    if (number != 1 && number != 2) {
        throw bad_message("no such neighbour");
    }
    pieces[number - 1].push_back({ token, std::move(data) });
}

std::vector<uint8_t> echo::take(uint32_t number, uint64_t token, uint32_t size) {
    if ((number != 1 && number != 2) || pieces[number - 1].empty()) {
        throw bad_message("no such neighbour, or nothing from it");
    }
    piece first = std::move(pieces[number - 1].front());
    pieces[number - 1].pop_front();
    if (first.token != token || first.data.size() != size) {
        throw std::runtime_error("something else");
    }
    return std::move(first.data);
}

// Some pushes to one neighbour, and what comes back for it
void mesh_session::pushes() {
    std::deque<push_body> sent;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        const buffer from = some_buffer();
        push_body body;
        body.neighbour = 1;
        body.buffer = from.number;
        body.size = static_cast<uint32_t>(dice_.below(4096));
        body.offset = dice_.below(from.size - body.size);
        body.token = dice_.next();
        if (hurt()) {
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
        body.offset = dice_.below(to.size - 4096);
        body.token = push.token;
        if (hurt()) {
            (dice_.one_in(2) ? body.buffer : body.size) = static_cast<uint32_t>(odd());
            valid = false;
        } else if (hurt()) {
            (dice_.one_in(2) ? body.offset : body.token) = odd();
            valid = false;
        }
        give(body, "take");
    }
}

void mesh_session::noise() {
    std::vector<uint8_t> bytes(dice_.below(400));
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(dice_.next()); });
    valid = false;
    give_bytes(static_cast<uint16_t>(dice_.below(16)), bytes, "noise");
}

void mesh_session::again() {
    compute_body body;
    body.uid = dice_.within(1, 12);
    valid = false; // perhaps it was never kept, or its indices are others by now
    give(body, "compute");
}

// Whatever a tensor needs, and then it
static void collect(ggml_tensor * tensor, std::vector<ggml_tensor *> & tensors) {
    if (tensor == nullptr || std::find(tensors.begin(), tensors.end(), tensor) != tensors.end()) {
        return;
    }
    for (ggml_tensor * source : tensor->src) {
        if (source != tensor) {
            collect(source, tensors);
        }
    }
    collect(tensor->view_src, tensors);
    tensors.push_back(tensor);
}

static uint32_t place_of(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & tensors) {
    const auto found = std::find(tensors.begin(), tensors.end(), tensor);
    return tensor == nullptr ? 0 : static_cast<uint32_t>(found - tensors.begin()) + 1;
}

wire_tensor mesh_session::describe(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & tensors) const {
    wire_tensor row;
    row.buffer = static_cast<uint32_t>(reinterpret_cast<uint64_t>(tensor->extra));
    row.type = number_of_type(tensor->type);
    row.offset = reinterpret_cast<uint64_t>(tensor->data);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        row.ne[i] = static_cast<uint32_t>(tensor->ne[i]);
        row.nb[i] = tensor->nb[i];
    }
    row.operation = number_of_operation(tensor->op);
    row.flags = static_cast<uint32_t>(tensor->flags) | 16;
    std::memcpy(row.parameters, tensor->op_params, sizeof row.parameters);
    kind_to_wire(tensor->op, row.parameters[0]);
    for (int i = 0; i < GGML_MAX_SRC; i++) {
        row.sources[i] = place_of(tensor->src[i], tensors);
    }
    row.viewed = place_of(tensor->view_src, tensors);
    row.view_offset = tensor->view_offs;
    row.uses = 1;
    return row;
}

// Makes one field wrong, or another right one
void mesh_session::damage(wire_tensor & t, size_t count) {
    const auto i = dice_.below(4);
    const auto j = dice_.below(4);
    const auto another = static_cast<uint32_t>(dice_.one_in(3) ? odd() : dice_.below(count + 1));
    valid = false;
    switch (dice_.below(13)) {
    case 0:
        t.type = static_cast<uint32_t>(dice_.one_in(4) ? odd() : dice_.below(TYPE_COUNT));
        break;
    case 1:
        t.ne[i] = static_cast<uint32_t>(odd());
        break;
    case 2:
        t.nb[i] = odd();
        break;
    case 3:
        t.ne[i] = static_cast<uint32_t>(t.ne[i] + dice_.within(-2, 2));
        break;
    case 4:
        t.nb[i] += static_cast<uint64_t>(dice_.within(-8, 8) * 4);
        break;
    case 5:
        t.operation = static_cast<uint32_t>(dice_.one_in(4) ? odd() : dice_.below(OPERATION_COUNT));
        break;
    case 6:
        t.parameters[dice_.below(16)] = static_cast<int32_t>(odd());
        break;
    case 7:
        t.sources[dice_.below(10)] = another;
        break;
    case 8:
        t.sources[i] = 0;
        break;
    case 9:
        t.viewed = another;
        break;
    case 10:
        t.offset = dice_.one_in(2) ? odd() : t.offset + static_cast<uint64_t>(dice_.within(-64, 64) * 4);
        break;
    case 11:
        t.buffer = static_cast<uint32_t>(dice_.one_in(2) ? odd() : dice_.below(last_buffer + 1));
        break;
    default:
        std::swap(t.ne[i], t.ne[j]);
        if (dice_.one_in(2)) {
            std::swap(t.nb[i], t.nb[j]);
        }
    }
}

// Writes valid numbers into tensors of indices, or now and then others
void mesh_session::set_indices(const std::vector<index_tensor> & indices) {
    for (const auto & one : indices) {
        const size_t width = one.tensor->type == GGML_TYPE_I64 ? 8 : 4;
        std::vector<uint8_t> bytes(ggml_nbytes(one.tensor));
        const bool bad = damaging && dice_.one_in(10);
        for (size_t at = 0; at + width <= bytes.size(); at += width) {
            auto value = static_cast<int64_t>(dice_.below(static_cast<uint64_t>(one.limit)));
            if (bad && dice_.one_in(3)) {
                value = dice_.one_in(2) ? one.limit + dice_.within(0, 2) : static_cast<int64_t>(odd());
                valid = false;
            }
            std::memcpy(bytes.data() + at, &value, width);
        }
        write_body body;
        body.buffer = static_cast<uint32_t>(reinterpret_cast<uint64_t>(one.tensor->extra));
        body.offset = reinterpret_cast<uint64_t>(one.tensor->data);
        const bool before = valid;
        valid = true;
        give(body, "indices", bytes);
        valid = valid && before;
    }
}

// How far kernels read: the CPU's ROPE takes a factor for each pair of a row, also those that it does not turn
static uint64_t reach(const ggml_tensor * tensor, const std::vector<ggml_tensor *> & nodes) {
    uint64_t bytes = ggml_nbytes(tensor);
    for (const ggml_tensor * node : nodes) {
        if (node->op == GGML_OP_ROPE && node->src[2] == tensor) {
            bytes = std::max<uint64_t>(bytes, static_cast<uint64_t>(node->ne[0]) / 2 * sizeof(float));
        }
    }
    return bytes;
}

// Some operations, each tensor with memory of its own and a gap behind it. false: there is no room
bool mesh_session::make_graph(const buffer & where, std::vector<ggml_tensor *> & tensors,
    std::vector<ggml_tensor *> & nodes, std::vector<index_tensor> & indices, ranges & gaps) {
    ggml_cgraph * made = ggml_new_graph_custom(ctx, 128, false);
    ggml_tensor * before = nullptr;
    for (int64_t n = dice_.within(1, 4); n > 0; n--) {
        const auto kind = static_cast<int>(dice_.below(static_cast<uint64_t>(n_operations())));
        before = make_operation(ctx, dice_, kind, before, indices);
        ggml_build_forward_expand(made, before);
    }
    for (int i = 0; i < ggml_graph_n_nodes(made); i++) {
        nodes.push_back(ggml_graph_node(made, i));
        collect(nodes.back(), tensors);
    }
    uint64_t used = 0;
    for (ggml_tensor * tensor : tensors) {
        tensor->extra = reinterpret_cast<void *>(static_cast<uint64_t>(where.number));
        if (tensor->view_src != nullptr) {
            tensor->data = static_cast<char *>(tensor->view_src->data) + tensor->view_offs;
            continue;
        }
        tensor->data = reinterpret_cast<void *>(used);
        const uint64_t end = used + reach(tensor, nodes);
        used = GGML_PAD(end, 32) + 64;
        gaps.emplace_back(end, used - end);
    }
    return used <= where.size;
}

void mesh_session::graph() {
    const buffer where = some_buffer();
    std::vector<uint8_t> room(ggml_tensor_overhead() * 128 + ggml_graph_overhead_custom(128, false));
    ggml_context_ptr own(ggml_init({ room.size(), room.data(), true }));
    ctx = own.get();
    std::vector<ggml_tensor *> tensors;
    std::vector<ggml_tensor *> nodes;
    std::vector<index_tensor> indices;
    ranges gaps;
    if (!make_graph(where, tensors, nodes, indices, gaps)) {
        return;
    }
    set_indices(indices);
    graph_body body;
    body.uid = dice_.below(12);
    body.node_count = static_cast<uint32_t>(nodes.size());
    body.tensor_count = static_cast<uint32_t>(tensors.size());
    std::vector<uint32_t> places;
    for (const ggml_tensor * node : nodes) {
        places.push_back(place_of(node, tensors) - 1);
    }
    std::vector<wire_tensor> rows;
    for (const ggml_tensor * tensor : tensors) {
        rows.push_back(describe(tensor, tensors));
    }
    for (int64_t n = damaging && dice_.one_in(2) ? dice_.within(1, 3) : 0; n > 0; n--) {
        damage(rows[dice_.below(rows.size())], rows.size());
        if (dice_.one_in(12)) {
            places[dice_.below(places.size())] =
                static_cast<uint32_t>(dice_.one_in(2) ? odd() : dice_.below(rows.size()));
        }
    }
    writer out;
    out.put_bytes(places.data(), places.size() * sizeof places[0]);
    for (const auto & row : rows) {
        row.put(out);
    }
    totals.graphs++;
    // only an undamaged graph keeps to its tensors
    if (!why.empty()) {
        return;
    }
    const uint8_t * base = worker.held().find(where.number, 0, 0).data;
    for (const auto & gap : valid ? gaps : ranges()) {
        ASAN_POISON_MEMORY_REGION(base + gap.first, gap.second);
    }
    give(body, "graph", out.data);
    ASAN_UNPOISON_MEMORY_REGION(base, where.size);
}
