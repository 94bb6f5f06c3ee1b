// Devices that want more for a tensor than its elements take.
#include "hand.h"
#include "late_client.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"

using namespace mesh;

TEST(a_head_knows_what_a_device_wants_for_a_tensor) {
    auto & device = *new late_device();
    ggml_backend_t there = open_late_client(device);
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(there);
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 256, nullptr, true }));
    ggml_context * ctx = context.get();
    for (const ggml_type kind : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q4_0, GGML_TYPE_Q8_0, GGML_TYPE_Q6_K }) {
        for (const int64_t width : { 256, 512, 768, 2816 }) {
            const ggml_tensor * one = ggml_new_tensor_2d(ctx, kind, width, 3);
            CHECK(ggml_backend_buft_get_alloc_size(type, one) == ggml_backend_buft_get_alloc_size(&device.memory, one));
            const bool pads = ggml_is_quantized(kind) && width % 512 != 0;
            CHECK((ggml_backend_buft_get_alloc_size(type, one) > ggml_nbytes(one)) == pads);
        }
    }
    ggml_tensor * query = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 4, 8);
    ggml_tensor * key = ggml_new_tensor_3d(ctx, GGML_TYPE_Q8_0, 64, 256, 2);
    ggml_tensor * result = ggml_flash_attn_ext(ctx, query, key, key, nullptr, 0.1f, 0, 0);
    CHECK(ggml_backend_buft_get_alloc_size(type, result) >= ggml_nbytes(result) + 2 * 2 * 64 * 256 * 2);
    ggml_backend_free(there);
}

TEST(a_cpu_takes_what_elements_take) {
    const size_rule plain = find_size_rule(ggml_backend_cpu_buffer_type());
    CHECK(plain.row_padding == 0 && !plain.attention_copies && !plain.working_room);
    late_device & device = *new late_device();
    const size_rule padded = find_size_rule(&device.memory);
    CHECK(padded.row_padding == 512 && padded.attention_copies && !padded.working_room);
    ggml_backend_buffer_type odd = device.memory;
    odd.iface.get_alloc_size = [](ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
        return ggml_nbytes(tensor) + (tensor->type == GGML_TYPE_Q8_0 ? 7 : 0);
    };
    const std::string why = thrown_by([&] { find_size_rule(&odd); });
    CHECK(why == "the memory `LATE` takes more for tensors of q8_0 than the protocol has a rule for");
    ggml_backend_buffer_type apart = device.memory;
    apart.iface.get_alignment = [](ggml_backend_buffer_type_t) -> size_t { return 512; }; // a head would refuse it
    CHECK(thrown_by([&] { find_size_rule(&apart); }).find("takes more for the beginning of a tensor") !=
          std::string::npos);
}

// As ggml-metal says it, in the words of its own source at the pin
static size_t metal_attention(const ggml_tensor * op) {
    const ggml_tensor * k = op->src[1];
    const ggml_tensor * v = op->src[2];
    const ggml_tensor * mask = op->src[3];
    const bool dequantized = op->src[0]->ne[1] >= 32 && k->type == GGML_TYPE_Q8_0;
    const size_t k_row = dequantized ? 2 * k->ne[0] : k->nb[1];
    const size_t v_row = dequantized ? 2 * v->ne[0] : v->nb[1];
    const bool vec = op->src[0]->ne[1] < 20 && op->src[0]->ne[0] % 32 == 0;
    size_t extra = 64 * (k_row * k->ne[2] * k->ne[3] + v_row * v->ne[2] * v->ne[3]);
    extra += 4 * std::min<int64_t>(op->src[0]->ne[1], 32) * op->src[0]->ne[2] * op->src[0]->ne[3] * 32 * (v->ne[0] + 2);
    extra += GGML_PAD(2 * ggml_nelements(k), 16) + GGML_PAD(2 * ggml_nelements(v), 16);
    if (mask != nullptr) {
        const int64_t queries = vec ? 1 : 8;
        const int64_t places = vec ? 32 : 64;
        const int64_t n1 = (op->src[0]->ne[1] + queries - 1) / queries;
        const int64_t n0 = (mask->ne[0] + places - 1) / places;
        extra += 64 * 2 * mask->ne[1] * mask->ne[2] * mask->ne[3];
        extra += GGML_PAD(n0 * n1 * mask->ne[2] * mask->ne[3], 32);
        const int32_t most = op->op_params[4];
        if (most > 0 && most <= 4096) {
            extra += GGML_PAD(4 * GGML_PAD(most, 32) * mask->ne[1] * mask->ne[2] * mask->ne[3], 16);
        }
    }
    return extra;
}

static size_t metal_size(ggml_backend_buffer_type_t, const ggml_tensor * op) {
    const size_t result = ggml_nbytes(op);
    const std::string name = ggml_op_name(op->op);
    if (name == "MUL_MAT_ID") {
        return result + 4 * op->src[0]->ne[2] + 4 * op->src[0]->ne[2] * op->src[2]->ne[1] + 8 + 256 * sizeof(float);
    }
    if (name == "TOP_K") {
        return 2 * sizeof(int32_t) * ggml_nelements(op->src[0]);
    }
    if (name == "FLASH_ATTN_EXT") {
        return result + metal_attention(op);
    }
    return name == "CUMSUM" || name == "ARGSORT" ? 2 * result : result;
}

static std::vector<ggml_tensor *> attentions(ggml_context * ctx) {
    std::vector<ggml_tensor *> all;
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_Q8_0 }) {
        for (const int64_t tokens : { 1, 7, 19, 20, 31, 32, 512 }) {
            for (const int64_t width : { 64, 72, 128 }) {
                if (width % ggml_blck_size(type) != 0) {
                    continue;
                }
                ggml_tensor * query = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, width, tokens, 8);
                ggml_tensor * cache =
                    ggml_new_tensor_3d(ctx, type, width, 2, 1000); // of two heads, as llama.cpp has it
                ggml_tensor * turned = ggml_permute(ctx, cache, 0, 2, 1, 3);
                ggml_tensor * mask = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, 1000, tokens);
                all.push_back(ggml_flash_attn_ext(ctx, query, turned, turned, mask, 0.1f, 0, 0));
                all.push_back(ggml_flash_attn_ext(ctx, query, turned, turned, nullptr, 0.1f, 0, 0));
                all.push_back(ggml_flash_attn_ext(ctx, query, turned, turned, mask, 0.1f, 0, 0));
                all.back()->op_params[4] = 1000;
            }
        }
    }
    return all;
}

TEST(a_device_that_works_behind_its_results_has_room_there) {
    auto & device = *new late_device();
    device.memory.iface.get_alloc_size = metal_size;
    ggml_backend_t there = open_late_client(device);
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(there);
    ggml_context_ptr context(ggml_init({ ggml_tensor_overhead() * 2048, nullptr, true }));
    ggml_context * ctx = context.get();
    std::vector<ggml_tensor *> all = attentions(ctx);
    for (const int64_t tokens : { 1, 33, 512 }) {
        ggml_tensor * experts = ggml_new_tensor_3d(ctx, GGML_TYPE_Q4_0, 64, 32, 60);
        ggml_tensor * values = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, 64, 4, tokens);
        all.push_back(ggml_mul_mat_id(ctx, experts, values, ggml_new_tensor_2d(ctx, GGML_TYPE_I32, 4, tokens)));
        ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 3000, tokens);
        all.push_back(ggml_cumsum(ctx, rows));
        all.push_back(ggml_argsort(ctx, rows, GGML_SORT_ORDER_ASC));
        all.push_back(ggml_top_k(ctx, rows, 3000));
        all.push_back(ggml_top_k(ctx, rows, 1));
        all.push_back(ggml_soft_max(ctx, rows));
    }
    for (const ggml_tensor * one : all) {
        const size_t wanted = metal_size(nullptr, one);
        const size_t given = ggml_backend_buft_get_alloc_size(type, one);
        CHECK(given >= wanted);
        CHECK(given == wanted || one->op == GGML_OP_FLASH_ATTN_EXT); // whose strides and types decide on some of it
        CHECK(given - wanted <= wanted);
    }
    const size_rule rule = find_size_rule(&device.memory);
    CHECK(rule.row_padding == 0 && !rule.attention_copies && rule.working_room);
    device.memory.iface.get_alloc_size = [](ggml_backend_buffer_type_t, const ggml_tensor * op) {
        return metal_size(nullptr, op) + (ggml_op_name(op->op) == std::string("TOP_K") ? 4096 : 0);
    };
    CHECK(thrown_by([&] { find_size_rule(&device.memory); }).find("TOP_K than the protocol has") != std::string::npos);
    ggml_backend_free(there);
}

TEST(padding_behind_weights_is_there_and_nothing) {
    auto & device = *new late_device();
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    // weights that end with the buffer: what is padded lies behind what the head has
    allocate_body allocate;
    allocate.buffer = 2;
    allocate.size = 2 * 34; // two rows of one block of Q8_0
    head.worker.write_body(3, allocate);
    CHECK(head.take().second[0] == 1);
    small_graph graph;
    graph.rows[0].buffer = 2;
    graph.rows[0].offset = 0;
    graph.rows[0].type = number_of_type(GGML_TYPE_Q8_0);
    graph.rows[0].ne[0] = 32;
    graph.rows[0].ne[1] = 2;
    graph.rows[0].nb[0] = graph.rows[0].nb[1] = 34;
    graph.rows[0].nb[2] = graph.rows[0].nb[3] = 68;
    graph.rows[1].ne[0] = 32;
    graph.rows[1].nb[1] = graph.rows[1].nb[2] = graph.rows[1].nb[3] = 128;
    graph.rows[2].offset = 256;
    graph.rows[2].ne[0] = 2;
    graph.rows[2].nb[1] = graph.rows[2].nb[2] = graph.rows[2].nb[3] = 8;
    graph.rows[2].operation = number_of_operation(GGML_OP_MUL_MAT);
    const std::string bytes = graph.bytes();
    head.worker.write_body(4, graph.body, bytes.data(), bytes.size());
    read_body read;
    read.buffer = 1;
    read.offset = 256;
    read.size = 8;
    head.worker.write_body(5, read);
    CHECK(head.take().second == blob(8, 0));
    const std::vector<uint8_t> all = device.last_buffer();
    CHECK(all.size() >= 2 * 34 + 15 * 34 && all == std::vector<uint8_t>(all.size(), 0));
    head.worker.shut();
    CHECK(head.server.end() == "");
}

// A query at 0, four keys and values at 256 and 1280, and the result at 2304: of 256 bytes, and twice 512 for copies
static small_graph attention_graph() {
    small_graph graph;
    graph.rows.resize(4);
    for (uint32_t i = 0; i < 4; i++) {
        wire_tensor & row = graph.rows[i];
        const bool is_cache = i == 1 || i == 2;
        row.buffer = 1;
        row.offset = i == 0 ? 0 : 256 + 1024 * (i - 1);
        row.type = number_of_type(GGML_TYPE_F32);
        row.ne[0] = 64;
        row.ne[1] = is_cache ? 4 : 1;
        row.ne[2] = row.ne[3] = 1;
        row.nb[0] = 4;
        row.nb[1] = 256;
        row.nb[2] = row.nb[3] = is_cache ? 1024 : 256;
        row.operation = 0;
        row.flags = 0;
        row.sources[0] = row.sources[1] = 0;
    }
    attend(graph);
    return graph;
}

static ggml_backend_t open_late() {
    return (new late_device())->open();
}

TEST(an_attention_without_room_for_its_copies_is_refused) {
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), open_late());
    small_graph graph = attention_graph();
    const std::string bytes = graph.bytes();
    head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    graph.rows[3].offset = 4096 - 256;
    CHECK(head.refused(graph.body, graph.bytes()) == "FLASH_ATTN_EXT has no room in its buffer");
}

TEST(an_attention_whose_copies_would_lie_on_a_source_is_refused) {
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), open_late());
    small_graph graph = attention_graph();
    const std::string bytes = graph.bytes();
    head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    head.worker.write_body(4, sync_body());
    CHECK(head.take().first == message::synced);
    graph.rows[0].offset = 2304 + 256;
    CHECK(head.refused(graph.body, graph.bytes()) == "FLASH_ATTN_EXT refused, wanted: in_place(t, i)");
}

TEST(indices_where_an_attention_copies_to_are_looked_at_behind_it) {
    auto & device = *new late_device();
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    small_graph graph = attention_graph(); // and GET_ROWS of the keys, by one index, at 3584
    graph.rows.push_back(graph.rows[0]);
    wire_tensor & index = graph.rows[4];
    index.type = number_of_type(GGML_TYPE_I32);
    index.ne[0] = 1;
    index.nb[1] = index.nb[2] = index.nb[3] = 4;
    graph.rows.push_back(graph.rows[3]);
    wire_tensor & got = graph.rows[5];
    got.operation = number_of_operation(GGML_OP_GET_ROWS);
    got.offset = 3584;
    got.sources[0] = 2;
    got.sources[1] = 5;
    got.sources[2] = 0;
    graph.nodes.push_back(5);
    graph.body.node_count = 2;
    graph.body.tensor_count = 6;
    const auto parts = [&](uint64_t offset) {
        graph.rows[4].offset = offset;
        const size_t before = device.computed();
        const std::string bytes = graph.bytes();
        head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
        head.worker.write_body(4, sync_body());
        CHECK(head.take().first == message::synced);
        return device.computed() - before;
    };
    CHECK(parts(4000) == 1);
    CHECK(parts(2304 + 256) == 2); // in the copy of the keys
    CHECK(parts(2304 + 256 + 1020) == 2);
    head.worker.shut();
    CHECK(head.server.end() == "");
}
