// The client's backend and a session at the other end of its socket, against the CPU by itself.
#include "check.h"
#include "cpu_client.h"
#include "welcoming.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"
#include "ggml-impl.h"

#include <cmath>

using namespace mesh;

static ggml_backend_reg no_registry = {};
static std::vector<float> noise(size_t count, uint32_t seed) {
    std::vector<float> values(count);
    for (auto & value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(seed >> 8) / static_cast<float>(1 << 24) - 0.5f;
    }
    return values;
}

// Something like a layer: it has views, a cache that is written in place, a cast, and quantized weights
class layer {
public:
    explicit layer(ggml_backend_t backend) : backend(backend) {
        context.reset(ggml_init({ ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true }));
        ggml_context * ctx = context.get();
        table = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 64, 10);
        weights = ggml_new_tensor_2d(ctx, GGML_TYPE_Q8_0, 64, 96);
        cache = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 32, 8);
        ids = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 3);
        rows = ggml_new_tensor_1d(ctx, GGML_TYPE_I64, 3);
        ggml_tensor * x = ggml_rms_norm(ctx, ggml_get_rows(ctx, table, ids), 1e-5f);
        ggml_tensor * y = ggml_mul_mat(ctx, weights, x); // 96 x 3
        ggml_tensor * value = ggml_cont(ctx, ggml_view_2d(ctx, y, 32, 3, y->nb[1], 64 * sizeof(float)));
        ggml_tensor * written = ggml_set_rows(ctx, cache, value, rows);
        ggml_tensor * kept = ggml_cast(ctx, written, GGML_TYPE_F32);
        ggml_tensor * gated = ggml_swiglu(ctx, ggml_cont(ctx, ggml_view_2d(ctx, y, 64, 3, y->nb[1], 0)));
        result = ggml_soft_max(ctx, ggml_mul_mat(ctx, kept, ggml_silu(ctx, gated))); // 8 x 3
        graph = ggml_new_graph(ctx);
        ggml_build_forward_expand(graph, result);
        memory.reset(ggml_backend_alloc_ctx_tensors(ctx, backend));
        CHECK(memory != nullptr);
        ggml_backend_buffer_clear(memory.get(), 0);
        set_weights();
    }

    std::vector<float> compute(std::vector<int32_t> tokens, uint64_t uid) {
        const int64_t places[3] = { 1, 4, 6 };
        ggml_backend_tensor_set(ids, tokens.data(), 0, sizeof(int32_t) * 3);
        ggml_backend_tensor_set(rows, places, 0, sizeof places);
        graph->uid = uid;
        CHECK(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS);
        std::vector<float> values(static_cast<size_t>(ggml_nelements(result)));
        ggml_backend_tensor_get(result, values.data(), 0, ggml_nbytes(result));
        return values;
    }

    ggml_tensor * table;
    ggml_tensor * weights;

private:
    void set_weights() {
        const auto values = noise(640, 1);
        ggml_backend_tensor_set(table, values.data(), 0, values.size() * sizeof(float));
        const auto dense = noise(64 * 96, 2);
        blob packed(ggml_nbytes(weights));
        ggml_quantize_chunk(weights->type, dense.data(), packed.data(), 0, 96, 64, nullptr);
        ggml_backend_tensor_set(weights, packed.data(), 0, packed.size());
    }

    ggml_backend_t backend;
    ggml_context_ptr context;
    ggml_backend_buffer_ptr memory;
    ggml_cgraph * graph;
    ggml_tensor * cache;
    ggml_tensor * ids;
    ggml_tensor * rows;
    ggml_tensor * result;
};

TEST(a_worker_computes_what_the_cpu_does) {
    ggml_backend_ptr cpu(ggml_backend_cpu_init());
    ggml_backend_cpu_set_n_threads(cpu.get(), 1);
    ggml_backend_t worker = open_client();
    {
        layer alone(cpu.get());
        layer there(worker);
        // new, the same again, and again after others have taken its place
        for (const uint64_t uid : { 0, 5, 5, 6, 7, 8, 9, 10, 11, 12, 13, 5, 5 }) {
            const std::vector<int32_t> tokens = { static_cast<int32_t>(uid % 10), 3, 9 };
            const auto expected = alone.compute(tokens, 0);
            CHECK(there.compute(tokens, uid) == expected);
            CHECK(std::fabs(expected[0]) > 0);
        }
    }
    layer anew(worker); // buffers were freed: what was kept is forgotten on both sides
    CHECK(anew.compute({ 1, 2, 3 }, 5) == layer(cpu.get()).compute({ 1, 2, 3 }, 0));
    ggml_backend_free(worker);
}

TEST(a_graph_that_the_worker_keeps_is_not_sent_again) {
    auto & worker = *new welcoming_worker(welcome_words()); // for as long as the process is, as its backend
    ggml_backend_dev_t device = &worker.open(0)[0]->device;
    worker.live();
    ggml_backend_ptr backend(ggml_backend_dev_init(device, nullptr));
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 4 + ggml_graph_overhead(), nullptr, true }));
    ggml_tensor * given = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, 4);
    ggml_cgraph * graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, ggml_sqr(context.get(), given));
    ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
    const auto sent_for = [&](const std::vector<uint64_t> & uids, const char * name = nullptr) {
        const size_t before = worker.heard().size();
        for (const uint64_t uid : uids) {
            graph->uid = uid;
            ggml_set_name(given, name != nullptr ? name : std::to_string(uid).c_str());
            CHECK(ggml_backend_graph_compute(backend.get(), graph) == GGML_STATUS_SUCCESS);
        }
        const std::vector<message> all = worker.heard();
        return std::vector<message>(all.begin() + static_cast<ptrdiff_t>(before), all.end() - 1); // less its SYNC
    };
    const auto g = message::graph;
    const auto c = message::compute;
    CHECK(sent_for({ 0, 0 }) == std::vector<message>({ g, g })); // has no name
    CHECK(sent_for({ 1, 2, 1, 2, 1 }) == std::vector<message>({ g, g, c, c, c }));
    static_assert(STORED_GRAPHS == 8, "the ninth takes the place of the first");
    CHECK(sent_for({ 3, 4, 5, 6, 7, 8, 1, 9, 2, 1 }) == std::vector<message>({ g, g, g, g, g, g, c, g, c, g }));
    // built again, it has another uid and is the same; by an earlier uid it is not known, but by what it is
    CHECK(sent_for({ 20, 21, 22, 22, 20 }, "9") == std::vector<message>({ c, c, c, c, c }));
    CHECK(sent_for({ 0 }, "9") == std::vector<message>({ g }));
}

// As llama.cpp does with the logits of a step that has none, so that samplers have a row to work on
TEST(nothing_is_padded_with_zeros) {
    ggml_backend_t worker = open_client();
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 8 + ggml_graph_overhead(), nullptr, true }));
    ggml_tensor * logits = ggml_new_tensor_2d(context.get(), GGML_TYPE_F32, 64, 0);
    ggml_tensor * rows = ggml_pad(context.get(), logits, 0, 1, 0, 0);
    ggml_tensor * best = ggml_top_k(context.get(), rows, 4);
    ggml_cgraph * graph = ggml_new_graph(context.get());
    ggml_build_forward_expand(graph, best);
    ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(context.get(), worker));
    ggml_backend_buffer_clear(memory.get(), 1);
    CHECK(ggml_backend_graph_compute(worker, graph) == GGML_STATUS_SUCCESS);
    std::vector<float> values(64, 1.0f);
    ggml_backend_tensor_get(rows, values.data(), 0, ggml_nbytes(rows));
    CHECK(values == std::vector<float>(64, 0.0f));
    ggml_backend_free(worker);
}

TEST(tensors_are_copied_and_set_in_pieces) {
    ggml_backend_t worker = open_client();
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 4, nullptr, true }));
    const int64_t count = 3 * PIECE_BYTES / 4 + 5;
    ggml_tensor * from = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, count);
    ggml_tensor * to = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, count);
    ggml_backend_buffer_ptr memory(ggml_backend_alloc_ctx_tensors(context.get(), worker));
    const auto values = noise(static_cast<size_t>(count), 3);
    ggml_backend_tensor_set(from, values.data(), 0, ggml_nbytes(from));
    ggml_backend_tensor_copy_async(worker, worker, from, to);
    ggml_backend_tensor_memset(to, 0, 4, 4);
    std::vector<float> back(values.size());
    ggml_backend_tensor_get_async(worker, to, back.data(), 0, ggml_nbytes(to));
    ggml_backend_synchronize(worker);
    CHECK(back[0] == values[0] && back[1] == 0 && back.back() == values.back());
    ggml_backend_free(worker);
}

TEST(tensors_go_from_worker_to_worker) {
    const socket_pair between;
    ggml_backend_t first = open_client(0, { { 1, between.ends[0] } });
    ggml_backend_t second = open_client(1, { { 0, between.ends[1] } });
    ggml_backend_t apart = open_client(2);
    const int64_t count = 2 * PIECE_BYTES / 4 + 5;
    std::vector<float> sent = noise(static_cast<size_t>(count), 4);
    std::vector<ggml_tensor *> tensors;
    std::vector<ggml_context_ptr> contexts;
    std::vector<ggml_backend_buffer_ptr> memory;
    for (ggml_backend_t backend : { first, second, apart }) {
        contexts.emplace_back(ggml_init({ ggml_tensor_overhead(), nullptr, true }));
        tensors.push_back(ggml_new_tensor_1d(contexts.back().get(), GGML_TYPE_F32, count));
        memory.emplace_back(ggml_backend_alloc_ctx_tensors(contexts.back().get(), backend));
    }
    std::vector<float> back(sent.size());
    for (int round = 0; round < 4; round++) { // there and back again
        sent[0] = static_cast<float>(round);
        ggml_backend_tensor_set(tensors[0], sent.data(), 0, ggml_nbytes(tensors[0]));
        CHECK(copy_tensor(tensors[0], tensors[1]));
        ggml_backend_tensor_memset(tensors[0], 0, 0, ggml_nbytes(tensors[0]));
        CHECK(copy_tensor(tensors[1], tensors[0]));
        ggml_backend_tensor_get(tensors[0], back.data(), 0, ggml_nbytes(tensors[0]));
        CHECK(back == sent);
    }
    CHECK(!copy_tensor(tensors[0], tensors[2])); // through the head, which ggml does then
    ggml_backend_tensor_copy(tensors[0], tensors[2]);
    ggml_backend_tensor_get(tensors[2], back.data(), 0, ggml_nbytes(tensors[2]));
    CHECK(back == sent);
}

TEST(what_the_worker_cannot_hold_is_no_buffer) {
    ggml_backend_t worker = open_client();
    CHECK(ggml_backend_alloc_buffer(worker, served::MEMORY + 1) == nullptr);
    ggml_backend_buffer_ptr fits(ggml_backend_alloc_buffer(worker, served::MEMORY));
    CHECK(fits != nullptr && !ggml_backend_buffer_is_host(fits.get()));
    ggml_backend_free(worker);
}

// As a scheduler does that is made anew: what it asks for is there already
TEST(memory_for_computing_that_was_freed_is_used_again) {
    ggml_backend_t worker = open_client();
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(worker);
    const auto in_use = [&](uint64_t size) {
        ggml_backend_buffer_ptr made(ggml_backend_buft_alloc_buffer(type, size));
        CHECK(made != nullptr);
        ggml_backend_buffer_set_usage(made.get(), GGML_BACKEND_BUFFER_USAGE_COMPUTE);
        return made;
    };
    void * base = ggml_backend_buffer_get_base(in_use(1000).get());
    for (const uint64_t size : { 900, 501, 1000 }) {
        const auto again = in_use(size);
        CHECK(ggml_backend_buffer_get_base(again.get()) == base && ggml_backend_buffer_get_size(again.get()) == 1000);
        CHECK(ggml_backend_buffer_get_base(in_use(100).get()) != base); // one that is in use is no spare
    }
    CHECK(ggml_backend_buffer_get_base(in_use(1001).get()) != base);
    CHECK(ggml_backend_buffer_get_size(in_use(100).get()) == 100); // 1001 would be too much for it
    in_use(served::MEMORY / 4 * 3);
    in_use(served::MEMORY); // for which there is room: the spare one is gone
    ggml_backend_free(worker);
}

TEST(weights_that_are_freed_are_gone) {
    ggml_backend_t worker = open_client();
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(worker);
    void * base = ggml_backend_buffer_get_base(ggml_backend_buffer_ptr(ggml_backend_buft_alloc_buffer(type, 8)).get());
    CHECK(ggml_backend_buffer_get_base(ggml_backend_buffer_ptr(ggml_backend_buft_alloc_buffer(type, 8)).get()) != base);
    ggml_backend_free(worker);
}

// llama.cpp computes it by another device then, and would end with this one
TEST(what_the_protocol_has_no_number_for_is_not_supported) {
    ggml_backend_t worker = open_client();
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 16, nullptr, true }));
    ggml_context * ctx = context.get();
    const auto supports = [&](const ggml_tensor * op) {
        return ggml_backend_dev_supports_op(ggml_backend_get_device(worker), op);
    };
    ggml_tensor * values = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, 256);
    ggml_tensor * packed = ggml_new_tensor_1d(ctx, GGML_TYPE_Q8_K, 256); // a type of the CPU's own
    CHECK(supports(ggml_sqr(ctx, values)));
    CHECK(supports(ggml_cast(ctx, values, GGML_TYPE_F16)));
    const auto copy = [](ggml_tensor *, const ggml_tensor *, int, int, void *) {};
    CHECK(!supports(ggml_map_custom1(ctx, values, copy, 1, nullptr)));
    CHECK(!supports(ggml_cast(ctx, packed, GGML_TYPE_F32)));
    ggml_tensor * result = ggml_sqr(ctx, values);
    result->type = packed->type;
    CHECK(!supports(result));
    ggml_tensor * unknown = ggml_silu(ctx, values);
    CHECK(supports(unknown));
    unknown->op_params[0] = GGML_UNARY_OP_COUNT;
    CHECK(!supports(unknown));
    ggml_backend_free(worker);
}

TEST(a_worker_that_is_lost_while_loading_fails_the_load) {
    static const weights_index none;
    served server;
    const auto devices = open_workers({ { server.own_end } }, &no_registry, none, 3);
    CHECK(devices[0]->name == "MESH3");
    shutdown(server.own_end, SHUT_RDWR);
    CHECK(server.end() == "");
    CHECK(ggml_backend_dev_init(&devices[0]->device, nullptr) == nullptr);
    CHECK(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(&devices[0]->device), 100) == nullptr);
}

TEST(no_worker_answers_at_all) {
    static const weights_index none;
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    shutdown(ends[1], SHUT_RDWR);
    CHECK(!thrown_by([&] { open_workers({ { ends[0] } }, &no_registry, none, 0); }).empty());
}

TEST(the_requests_of_a_step_leave_together) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0); // each write is a packet
    connection link(ends[0], 0, "step");
    const blob data(1000, 0);
    blob packet(1 << 20);
    CHECK(link.send(write_body(), data.data(), data.size()) && link.send(fill_body()));
    CHECK(recv(ends[1], packet.data(), packet.size(), MSG_DONTWAIT) < 0);
    CHECK(link.send(compute_body()));
    const size_t all =
        3 * wire_header::bytes + write_body::bytes + data.size() + fill_body::bytes + compute_body::bytes;
    CHECK(recv(ends[1], packet.data(), packet.size(), MSG_DONTWAIT) == static_cast<ssize_t>(all));
    reader in(packet.data(), all);
    for (const message number : { message::write, message::fill, message::compute }) {
        const auto header = wire_header::take(in);
        CHECK(header.kind == static_cast<uint16_t>(number) && header.id > 0);
        in.bytes(header.size);
    }
    in.end();
    uint8_t answers[2][4];
    read_body wanted;
    wanted.size = sizeof answers[0];
    for (auto & answer : answers) {
        CHECK(link.ask(wanted, message::data, answer, sizeof answer) != 0);
    }
    const size_t questions = 2 * (wire_header::bytes + read_body::bytes);
    CHECK(recv(ends[1], packet.data(), packet.size(), MSG_DONTWAIT) < 0);
    link.tick(0); // nobody waits for them
    CHECK(recv(ends[1], packet.data(), packet.size(), MSG_DONTWAIT) == static_cast<ssize_t>(questions));
    CHECK(link.ask(wanted, message::data, answers[0], sizeof answers[0]) != 0);
    std::thread waits([&] { link.wait_all(); });
    CHECK(recv(ends[1], packet.data(), packet.size(), 0) == static_cast<ssize_t>(questions / 2));
    link.lose("nobody answers");
    waits.join();
}

TEST(much_does_not_wait) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    connection link(ends[0], 0, "much");
    blob packet(1 << 20);
    const blob much(70 * 1000, 0);
    CHECK(link.send(write_body(), much.data(), much.size()));
    CHECK(recv(ends[1], packet.data(), packet.size(), MSG_DONTWAIT) > 70 * 1000);
}
