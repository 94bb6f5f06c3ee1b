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
    CHECK(plain.row_padding == 0 && !plain.attention_copies);
    late_device & device = *new late_device();
    const size_rule padded = find_size_rule(&device.memory);
    CHECK(padded.row_padding == 512 && padded.attention_copies);
    ggml_backend_buffer_type odd = device.memory;
    odd.iface.get_alloc_size = [](ggml_backend_buffer_type_t, const ggml_tensor * tensor) {
        return ggml_nbytes(tensor) + (tensor->type == GGML_TYPE_Q8_0 ? 7 : 0);
    };
    const std::string why = thrown_by([&] { find_size_rule(&odd); });
    CHECK(why == "the memory `LATE` takes more for tensors of q8_0 than the protocol has a rule for");
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

TEST(an_attention_without_room_for_its_copies_is_refused) {
    auto & device = *new late_device();
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    small_graph graph;
    graph.rows.resize(4);
    for (uint32_t i = 0; i < 4; i++) { // a query, four keys and values, and the result
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
    graph.rows[3].operation = number_of_operation(GGML_OP_FLASH_ATTN_EXT);
    graph.rows[3].flags = 16;
    for (uint32_t i = 0; i < 3; i++) {
        graph.rows[3].sources[i] = i + 1;
    }
    graph.nodes = { 3 };
    graph.body.tensor_count = 4;
    const std::string bytes = graph.bytes();
    head.worker.write_body(3, graph.body, bytes.data(), bytes.size()); // 256 bytes, and twice 512
    graph.rows[3].offset = 4096 - 256;
    CHECK(head.refused(graph.body, graph.bytes()) == "FLASH_ATTN_EXT has no room in its buffer");
}
