// What a worker holds for a head that sends on and on, or that does not read, is bounded in bytes; and the memory that
// it holds it in.
#include "hand.h"
#include "late_device.h"

#include <algorithm>
#include <cstdlib>
#include <future>

using namespace mesh;

static constexpr uint64_t PIECES = 3ull * QUEUE_BYTES / PIECE_BYTES;

// What has been counted when it has not grown for a while
static uint64_t at_rest(const std::function<uint64_t()> & count) {
    uint64_t last = count();
    for (int quiet = 0; quiet < 20; quiet++) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const uint64_t now = count();
        quiet = now == last ? quiet : 0;
        last = now;
    }
    return last;
}

static void allocate_piece(hand & head) {
    allocate_body body;
    body.buffer = 2;
    body.size = PIECE_BYTES;
    head.worker.write_body(3, body);
    CHECK(head.take().first == message::allocated);
}

TEST(a_head_that_sends_on_and_on_is_not_read_on_and_on) {
    late_device & device = *new late_device();
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    allocate_piece(head);
    device.hold();
    std::atomic<uint64_t> sent{ 0 };
    auto sending = std::async(std::launch::async, [&] {
        const blob piece(PIECE_BYTES, 1);
        write_body write;
        write.buffer = 2;
        for (uint64_t i = 0; i < PIECES; i++, sent += PIECE_BYTES) {
            head.worker.write_body(4 + i, write, piece.data(), piece.size());
        }
    });
    const uint64_t taken = at_rest([&] { return sent.load(); });
    device.release();
    sending.get();
    head.worker.shut();
    CHECK(head.server.end() == "");
    // by its queue of requests, and by what the device has been given; the socket and a message on its way are little
    CHECK(taken <= 2ull * QUEUE_BYTES + QUEUE_BYTES / 4);
}

static std::atomic<uint64_t> computed;
static ggml_status (*compute_on_cpu)(ggml_backend_t, ggml_cgraph *);

static ggml_status count(ggml_backend_t backend, ggml_cgraph * graph) {
    computed++;
    return compute_on_cpu(backend, graph);
}

TEST(a_head_that_does_not_read_is_not_answered_on_and_on) {
    computed = 0;
    hand head(true, {}, [](ggml_backend_t backend) {
        compute_on_cpu = backend->iface.graph_compute;
        backend->iface.graph_compute = count;
    });
    allocate_piece(head);
    small_graph graph;
    const std::string bytes = graph.bytes();
    read_body read;
    read.buffer = 2;
    read.size = PIECE_BYTES;
    for (uint64_t i = 0; i < PIECES; i++) {
        head.worker.write_body(4 + 2 * i, read);
        head.worker.write_body(5 + 2 * i, graph.body, bytes.data(), bytes.size());
    }
    const uint64_t answered = at_rest([] { return computed.load(); });
    for (uint64_t i = 0; i < PIECES; i++) {
        const auto said = head.take();
        CHECK(said.first == message::data && said.second.size() == PIECE_BYTES);
    }
    head.worker.write_body(200, sync_body());
    CHECK(head.take().first == message::synced && computed == PIECES);
    head.worker.shut();
    CHECK(head.server.end() == "");
    CHECK(answered <= QUEUE_BYTES / PIECE_BYTES + 2);
}

// What lies in this memory, each with bytes of its own, until there is no more of it
static std::vector<uint8_t *> take_all(uint8_t * memory, size_t size) {
    std::vector<uint8_t *> taken;
    for (;;) {
        auto * one = static_cast<uint8_t *>(take_bytes(size));
        if (one < memory || one + size > memory + STAGING_BYTES) {
            give_bytes(one);
            return taken;
        }
        taken.push_back(one);
    }
}

TEST(memory_that_was_opened_for_devices_has_room_for_each_piece) {
    static constexpr size_t LARGE = PIECE_BYTES + 4096;
    static constexpr size_t SMALL = 64 * 1024;
    auto * memory = static_cast<uint8_t *>(std::malloc(STAGING_BYTES)); // for as long as the process is
    open_staging(memory, STAGING_BYTES);
    const auto small = take_all(memory, SMALL);
    const auto large = take_all(memory, LARGE);
    CHECK(!small.empty() && large.size() * PIECE_BYTES >= 2ull * QUEUE_BYTES);
    std::vector<std::pair<uint8_t *, size_t>> all;
    for (uint8_t * one : small) {
        all.emplace_back(one, SMALL);
    }
    for (uint8_t * one : large) {
        all.emplace_back(one, LARGE);
    }
    std::sort(all.begin(), all.end());
    for (size_t i = 0; i + 1 < all.size(); i++) {
        CHECK(all[i].first + all[i].second <= all[i + 1].first);
    }
    for (const auto & one : { all.front(), all.back() }) {
        give_bytes(one.first);
        CHECK(take_bytes(one.second) == one.first); // each kind goes back to its own
    }
    // nothing else is given back: what other tests hold lies where ASan sees its ends
}
