// What graphs take beside buffers, and what kernels count as int.
#include "hand.h"
#include "operations.h"

#include "ggml-cpp.h"

using namespace mesh;

static bool has(const std::string & text, const char * part) {
    return text.find(part) != std::string::npos;
}

// Tensors that have no data, of any size
class shapes {
public:
    ggml_tensor * make(ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        return ggml_new_tensor_3d(context.get(), type, ne0, ne1, ne2);
    }
    ggml_context * ctx() { return context.get(); }

private:
    ggml_context_ptr context{ ggml_init({ ggml_tensor_overhead() * 16, nullptr, true }) };
};

static std::string why(const ggml_tensor * node) {
    return thrown_by([&] { check_operation(node); });
}

static std::string why_experts(int64_t experts, int64_t used, int64_t tokens) {
    shapes s;
    ggml_tensor * values = s.make(GGML_TYPE_F32, 32, used, tokens);
    return why(
        ggml_mul_mat_id(s.ctx(), s.make(GGML_TYPE_Q8_0, 32, 1, experts), values, s.make(GGML_TYPE_I32, used, tokens)));
}

TEST(experts_are_as_many_as_kernels_can_count_in_bytes) {
    CHECK(why_experts(512, 8, 2048) == "");
    CHECK(why_experts(1 << 16, 1, 1) == "");
    CHECK(has(why_experts((1 << 16) + 1, 1, 1), "MUL_MAT_ID refused"));
    CHECK(has(why_experts(1 << 26, 1, 1), "MUL_MAT_ID refused")); // 64 bytes of each are 0 as int
    CHECK(why_experts(1 << 10, 8, 1 << 12) == "");
    CHECK(has(why_experts(1 << 10, 9, 1 << 12), "MUL_MAT_ID refused"));
}

TEST(sums_and_products_of_sizes_fit_an_int) {
    const int64_t large = 1 << 20;
    shapes s;
    CHECK(why(ggml_ssm_conv(s.ctx(), s.make(GGML_TYPE_F32, 2047, large), s.make(GGML_TYPE_F32, 4, large))) == "");
    CHECK(has(why(ggml_ssm_conv(s.ctx(), s.make(GGML_TYPE_F32, 2048, large), s.make(GGML_TYPE_F32, 4, large))),
        "SSM_CONV refused"));
    CHECK(why(ggml_group_norm(s.ctx(), s.make(GGML_TYPE_F32, 1, 1, 1 << 29), 4, 0.1f)) == "");
    CHECK(has(why(ggml_group_norm(s.ctx(), s.make(GGML_TYPE_F32, 1, 1, 1 << 30), 4, 0.1f)), "GROUP_NORM refused"));
    CHECK(why(ggml_cont(s.ctx(), s.make(GGML_TYPE_F16, 2047, large))) == "");
    CHECK(has(why(ggml_cont(s.ctx(), s.make(GGML_TYPE_F16, 2048, large))), "CONT refused"));
    CHECK(why(ggml_cont(s.ctx(), s.make(GGML_TYPE_Q8_0, 2048, large))) == "");
}

static std::string why_rows(ggml_type to, ggml_type from) {
    shapes s;
    return why(ggml_set_rows(s.ctx(), s.make(to, 32, 4), s.make(from, 32, 2), s.make(GGML_TYPE_I64, 2)));
}

TEST(half_floats_are_not_converted_where_threads_share_the_space_of_one) {
    for (const ggml_type to : { GGML_TYPE_F32, GGML_TYPE_BF16, GGML_TYPE_Q8_0 }) {
        CHECK(why_rows(to, GGML_TYPE_F32) == "");
        CHECK(has(why_rows(to, GGML_TYPE_F16), "SET_ROWS refused"));
    }
    CHECK(why_rows(GGML_TYPE_F16, GGML_TYPE_F32) == "");
    CHECK(why_rows(GGML_TYPE_F16, GGML_TYPE_F16) == "");
}

// An attention of one token over one, with heads of this size, in buffer 2
static small_graph wide_attention(uint32_t head_size) {
    small_graph graph;
    graph.rows.resize(4);
    for (uint32_t i = 0; i < 4; i++) {
        wire_tensor & row = graph.rows[i];
        row = graph.rows[0];
        row.buffer = 2;
        row.offset = uint64_t(4) * head_size * i;
        row.ne[0] = head_size;
        row.nb[1] = row.nb[2] = row.nb[3] = 4 * head_size;
    }
    attend(graph);
    return graph;
}

TEST(a_graph_that_needs_more_to_work_in_than_is_lent_is_refused) {
    hand head;
    allocate_body allocate;
    allocate.buffer = 2;
    allocate.size = 4 << 20;
    head.worker.write_body(3, allocate);
    CHECK(head.take().second[0] == 1);
    const small_graph usual = wide_attention(1 << 12); // kernels take a kilobyte for each value of a head
    const std::string bytes = usual.bytes();
    head.worker.write_body(4, usual.body, bytes.data(), bytes.size());
    head.worker.write_body(5, sync_body());
    CHECK(head.take().first == message::synced);
    const small_graph wide = wide_attention(1 << 17);
    CHECK(has(head.refused(wide.body, wide.bytes()), "bytes to work in, of 67108864 lent"));
}

// The largest graph that there may be: one sum
static small_graph large_graph() {
    small_graph graph;
    wire_tensor sum = graph.rows[2];
    graph.rows.resize(GRAPH_TENSORS, graph.rows[0]);
    graph.rows[2] = graph.rows[0];
    graph.rows.back() = sum;
    graph.nodes = { GRAPH_TENSORS - 1 };
    graph.body.tensor_count = GRAPH_TENSORS;
    return graph;
}

TEST(graphs_that_are_kept_have_a_limit_of_memory) {
    hand head;
    small_graph graph = large_graph();
    const std::string bytes = graph.bytes();
    for (int i = 0; i < 10; i++) { // each takes the place of the one before
        graph.body.uid = 7;
        head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    }
    head.worker.write_body(4, sync_body());
    CHECK(head.take().first == message::synced);
    thrown_by([&] { // it may have gone by the last of them
        for (uint32_t i = 0; i < STORED_GRAPHS; i++) {
            graph.body.uid = 10 + i;
            head.worker.write_body(5, graph.body, bytes.data(), bytes.size());
        }
        head.worker.write_body(6, sync_body());
        head.take();
    });
    head.worker.shut();
    CHECK(has(head.server.end(), "graphs to keep take"));
}
