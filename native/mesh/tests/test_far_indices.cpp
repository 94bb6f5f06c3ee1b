// Indices that a device has lie wherever strides put them: this process holds a part of them at once, and few parts.
#include "hand.h"
#include "late_device.h"

#include "ggml-backend-impl.h"

using namespace mesh;

static void (*get_at_first)(ggml_backend_t, const ggml_tensor *, void *, size_t, size_t) = nullptr;
static std::vector<size_t> asked;

static void get_counted(ggml_backend_t backend, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    asked.push_back(size);
    get_at_first(backend, tensor, data, offset, size);
}

// Rows that these indices choose, of a table of three. Buffer 2 is nearly all that is lent
class far_indices {
public:
    static constexpr uint64_t SIZE = 48 << 20;

    far_indices(std::vector<uint32_t> counts, std::vector<uint64_t> strides) {
        asked.clear();
        allocate_body body;
        body.buffer = 2;
        body.size = SIZE;
        head.worker.write_body(3, body);
        CHECK(head.take().second[0] == 1);
        fill_body zero;
        zero.buffer = 2;
        zero.size = SIZE;
        head.worker.write_body(4, zero);
        for (auto & row : graph.rows) {
            row.buffer = 2;
        }
        wire_tensor & table = graph.rows[0]; // of four values each, for each column of indices
        table.offset = SIZE - (2 << 20);
        table.ne[1] = 3;
        table.ne[2] = counts.size() > 1 ? counts[1] : 1;
        table.nb[2] = 48;
        table.nb[3] = 48 * table.ne[2];
        wire_tensor & ids = graph.rows[1];
        ids.type = number_of_type(GGML_TYPE_I32);
        ids.offset = 0;
        wire_tensor & result = graph.rows[2];
        result.offset = SIZE - (1 << 20);
        result.operation = number_of_operation(GGML_OP_GET_ROWS);
        for (size_t i = 0; i < 4; i++) {
            ids.ne[i] = i < counts.size() ? counts[i] : 1;
            ids.nb[i] = i < strides.size() ? strides[i] : strides.back();
        }
        for (size_t i = 1; i < 4; i++) {
            result.ne[i] = ids.ne[i - 1];
            result.nb[i] = result.nb[i - 1] * result.ne[i - 1];
        }
    }

    void set(uint64_t offset, int32_t index) {
        write_body body;
        body.buffer = 2;
        body.offset = offset;
        head.worker.write_body(5, body, &index, sizeof index);
    }

    // Why it was refused, or ""
    std::string why() {
        const std::string bytes = graph.bytes();
        head.worker.write_body(6, graph.body, bytes.data(), bytes.size());
        head.worker.write_body(7, sync_body());
        const auto said = head.take();
        head.worker.shut();
        head.server.end();
        return said.first == message::failed ? std::string(said.second.begin(), said.second.end()) : "";
    }

    static size_t most_asked() { return asked.empty() ? 0 : *std::max_element(asked.begin(), asked.end()); }

private:
    static void count_reads(ggml_backend_t backend) {
        get_at_first = backend->iface.get_tensor_async;
        backend->iface.get_tensor_async = get_counted;
    }

    late_device & device = *new late_device();
    small_graph graph;
    hand head{ true, {}, count_reads, std::chrono::seconds(1), device.open() };
};

TEST(two_indices_far_from_each_other_take_little_memory) {
    constexpr uint64_t FAR = 40 << 20;
    far_indices good({ 2 }, { FAR, FAR + 64, FAR + 64, FAR + 64 });
    good.set(FAR, 2);
    CHECK(good.why() == "" && asked == std::vector<size_t>({ 4, 4 }));
    far_indices bad({ 2 }, { FAR, FAR + 64, FAR + 64, FAR + 64 });
    bad.set(FAR, 3);
    CHECK(bad.why() == "wrong value: index 3 of 3");
}

TEST(many_indices_are_looked_at_in_pieces) {
    constexpr uint32_t ROWS = 1 << 7;
    constexpr uint64_t STRIDE = 128 << 10; // 16 MiB
    far_indices good({ 8, ROWS }, { 4, STRIDE, STRIDE * ROWS, STRIDE * ROWS });
    good.set(STRIDE * (ROWS - 1) + 28, 2);
    CHECK(good.why() == "");
    CHECK(asked.size() == 4 && far_indices::most_asked() <= PIECE_BYTES);
    for (const uint64_t at : { STRIDE * 33, STRIDE * (ROWS - 1) + 28 }) {
        far_indices bad({ 8, ROWS }, { 4, STRIDE, STRIDE * ROWS, STRIDE * ROWS });
        bad.set(at, -1);
        CHECK(bad.why() == "wrong value: index -1 of 3");
    }
}

TEST(indices_in_columns_are_looked_at_together) {
    far_indices good({ 1024, 4 }, { 16, 4, 16384, 16384 });
    good.set(1023 * 16 + 12, 2);
    CHECK(good.why() == "" && asked.size() == 1);
    far_indices bad({ 1024, 4 }, { 16, 4, 16384, 16384 });
    bad.set(1023 * 16 + 12, 3);
    CHECK(bad.why() == "wrong value: index 3 of 3");
}

TEST(indices_in_very_many_places_are_refused) {
    // in turn at both ends of 32 MiB
    constexpr uint64_t FAR = 32 << 20;
    far_indices far({ 2, 4097 }, { FAR, 4, FAR + (1 << 20), FAR + (1 << 20) });
    CHECK(far.why() == "indices that lie too far from each other");
}
