// A device that works by itself, as a GPU does: what it is given at once, and what is known before it has done it.
#include "flights.h"
#include "hand.h"
#include "late_device.h"

#include <atomic>
#include <future>

using namespace mesh;

// In case of a hang the test ends with the others, by their time limit
static void wait_until(const std::function<bool()> & holds) {
    while (!holds()) {
        std::this_thread::yield();
    }
}

// A hand at a late device, which has computed one graph, numbered 77, already
class late_hand {
public:
    late_hand() : head(true, {}, [](ggml_backend_t) {}, std::chrono::milliseconds(1), device.open()) {
        graph.body.uid = 77;
        const std::string bytes = graph.bytes();
        head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
        head.worker.write_body(4, sync_body());
        CHECK(head.take().first == message::synced && device.computed() == 1);
    }

    ~late_hand() { device.release(); } // a test that failed ends as well

    void write(uint64_t id, uint64_t offset, const void * data, size_t size) {
        write_body body;
        body.buffer = 1;
        body.offset = offset;
        head.worker.write_body(id, body, data, size);
    }

    void compute(uint64_t id) {
        compute_body body;
        body.uid = 77;
        head.worker.write_body(id, body);
    }

    void read(uint64_t id, uint64_t offset, uint32_t size) {
        read_body body;
        body.buffer = 1;
        body.offset = offset;
        body.size = size;
        head.worker.write_body(id, body);
    }

    progress_body next_report() {
        const auto said = head.take_any();
        CHECK(said.first == message::progress);
        reader in(said.second);
        return progress_body::take(in);
    }

    late_device & device = *new late_device();
    small_graph graph;
    hand head;
};

TEST(a_device_is_given_what_comes_next_before_it_has_done_what_was_before) {
    late_hand one;
    one.device.hold();
    for (uint32_t i = 0; i < 5; i++) { // each changes what the one before computes with
        const float values[4] = { float(i), 2, 3, 4 };
        one.write(10 + 3 * i, 0, values, sizeof values);
        one.compute(11 + 3 * i);
        one.read(12 + 3 * i, 128, sizeof values);
    }
    wait_until([&] { return one.device.waiting() == 5; });
    one.device.release();
    for (uint32_t i = 0; i < 5; i++) {
        float sum;
        std::memcpy(&sum, one.head.take().second.data(), sizeof sum);
        CHECK(sum == float(i));
    }
    one.head.worker.shut();
    CHECK(one.head.server.end() == "");
}

TEST(what_a_device_still_reads_is_bounded_in_bytes) {
    static constexpr size_t PIECE = 4 << 20;
    static constexpr int PIECES = 3 * QUEUE_BYTES / PIECE;
    late_device & device = *new late_device();
    const ggml_backend_ptr backend(device.open());
    const std::vector<lent_device> devices = { { backend.get(), 1 << 30 } };
    progress doing;
    flights flying(devices, doing, [] {});
    device.hold();
    std::atomic<size_t> kept{ 0 };
    auto giving = std::async(std::launch::async, [&] {
        for (int i = 0; i < PIECES; i++) {
            flying.keep(0, 1, blob(PIECE));
            kept += PIECE;
        }
    });
    CHECK(giving.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
    CHECK(kept <= QUEUE_BYTES + QUEUE_BYTES / 4);
    device.release();
    giving.get();
    flying.wait();
}

TEST(a_device_that_does_not_do_what_it_was_given_is_told_and_given_up) {
    late_hand one;
    one.device.hold();
    one.compute(50);
    one.read(51, 128, 16);
    progress_body body;
    while (body.request != 50 || body.seconds < HUNG_SECONDS) {
        body = one.next_report();
    }
    CHECK(body.done == 49 && body.waits == 0);
    CHECK(!one.head.server.abandoned);
    one.head.worker.shut();
    wait_until([&] { return one.head.server.abandoned.load(); });
    one.device.release();
    one.head.server.end();
}

TEST(a_device_that_has_done_all_is_at_rest) {
    late_hand one;
    one.device.hold();
    one.compute(50);
    one.write(51, 0, "abcd", 4);
    while (one.next_report().request != 50) {
    }
    one.device.release();
    progress_body body = one.next_report();
    while (body.request != 0 || body.done != 51) {
        body = one.next_report();
    }
    CHECK(body.seconds == 0);
    one.head.worker.shut();
    CHECK(one.head.server.end() == "");
}

TEST(what_was_asked_before_a_fault_is_answered_before_it_is_told) {
    late_hand one;
    one.device.hold();
    one.read(50, 128, 16);
    compute_body none;
    none.uid = 5;
    one.head.worker.write_body(51, none);
    one.device.release();
    CHECK(one.head.take().first == message::data);
    CHECK(one.head.take().first == message::failed);
    one.head.server.end();
}

TEST(a_device_that_is_held_does_not_lose_what_it_reads) {
    late_hand one;
    one.device.hold();
    std::vector<std::string> sent;
    for (uint32_t i = 0; i < 20; i++) { // sizes of pieces and of tokens, whose memory others could have by then
        sent.emplace_back(i % 2 == 0 ? 3000 : 200, static_cast<char>('a' + i));
        one.write(10 + 2 * i, 1024, sent.back().data(), sent.back().size());
        one.read(11 + 2 * i, 1024, static_cast<uint32_t>(sent.back().size()));
    }
    one.device.release();
    for (const auto & expected : sent) {
        const auto said = one.head.take();
        CHECK(std::string(said.second.begin(), said.second.end()) == expected);
    }
    one.head.worker.shut();
    CHECK(one.head.server.end() == "");
}

// Rows of a table, as a hand's graph: the table at 0, ids at 512, the result at 1024
static small_graph rows_graph() {
    small_graph graph;
    graph.rows[0].ne[1] = 3;
    graph.rows[0].nb[2] = graph.rows[0].nb[3] = 48;
    graph.rows[1].offset = 512;
    graph.rows[1].type = number_of_type(GGML_TYPE_I32);
    graph.rows[1].ne[0] = 1;
    graph.rows[1].nb[1] = graph.rows[1].nb[2] = graph.rows[1].nb[3] = 4;
    graph.rows[2].offset = 1024;
    graph.rows[2].operation = number_of_operation(GGML_OP_GET_ROWS);
    graph.body.uid = 78;
    return graph;
}

static const int32_t GOOD = 2;
static const int32_t BAD = 3;

// What a head is told that has this index put in place of a good one in some way
static std::string told_of(const std::function<void(late_hand &)> & put) {
    late_hand one;
    const std::string bytes = rows_graph().bytes();
    one.write(10, 512, &GOOD, sizeof GOOD);
    one.write(11, 600, &BAD, sizeof BAD);
    put(one);
    one.head.worker.write_body(20, rows_graph().body, bytes.data(), bytes.size());
    thrown_by([&] { one.read(21, 1024, 4); }); // it may have ended
    const auto said = one.head.take();
    one.head.worker.shut();
    one.head.server.end();
    return said.first == message::failed ? std::string(said.second.begin(), said.second.end()) : "";
}

TEST(indices_are_known_before_the_device_has_them) {
    late_hand one;
    one.device.hold();
    const std::string bytes = rows_graph().bytes();
    one.write(10, 512, &GOOD, sizeof GOOD);
    one.head.worker.write_body(11, rows_graph().body, bytes.data(), bytes.size());
    wait_until([&] { return one.device.waiting() == 1; }); // the device has been asked nothing
    one.write(12, 512, &BAD, sizeof BAD);
    compute_body again;
    again.uid = 78;
    one.head.worker.write_body(13, again);
    one.device.release();
    const auto said = one.head.take();
    CHECK(std::string(said.second.begin(), said.second.end()) == "wrong value: index 3 of 3");
    one.head.server.end();
}

TEST(indices_that_came_in_another_way_are_asked_of_the_device) {
    CHECK(told_of([](late_hand &) {}).empty());
    CHECK(told_of([](late_hand & one) { one.write(12, 510, "\0\0\3\0\0", 5); }) == "wrong value: index 3 of 3");
    CHECK(told_of([](late_hand & one) {
        copy_body copy;
        copy.from_buffer = copy.to_buffer = 1;
        copy.from_offset = 600;
        copy.to_offset = 512;
        copy.size = sizeof BAD;
        one.head.worker.write_body(12, copy);
    }) == "wrong value: index 3 of 3");
    CHECK(told_of([](late_hand & one) {
        fill_body fill;
        fill.buffer = 1;
        fill.value = 1;
        fill.offset = 513;
        fill.size = 1;
        one.head.worker.write_body(12, fill);
    }) == "wrong value: index 258 of 3");
    CHECK(told_of([](late_hand & one) { // a graph that writes there: 1 + 2, which as a number of a row is very large
        small_graph sum;
        sum.rows[2].offset = 512;
        const float values[4] = { 1, 1, 1, 1 };
        one.write(12, 0, values, sizeof values);
        const std::string bytes = sum.bytes();
        one.head.worker.write_body(13, sum.body, bytes.data(), bytes.size());
    }) == "wrong value: index 1065353216 of 3");
}

TEST(a_graph_that_waits_is_not_computed_once_the_head_is_gone) {
    const socket_pair between;
    late_device & device = *new late_device(false); // stops in no graph by itself
    small_graph graph;
    graph.body.uid = 77;
    hand head(true, { { 3, between.ends[0] } }, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    const std::string bytes = graph.bytes();
    head.worker.write_body(3, graph.body, bytes.data(), bytes.size());
    head.worker.write_body(4, sync_body());
    CHECK(head.take().first == message::synced && device.computed() == 1);
    device.hold();
    write_body write;
    write.buffer = 1;
    head.worker.write_body(5, write, "abcd", 4); // waits for the device
    compute_body again;
    again.uid = 77;
    head.worker.write_body(6, again);
    head.worker.shut();
    char byte;
    const ssize_t n = recv(between.ends[1], &byte, 1, 0); // its neighbours are told when it has seen the end
    device.release();
    CHECK(n == 0 && head.server.end() == "");
    CHECK(device.computed() == 1);
    close(between.ends[1]);
}

TEST(a_device_without_events_is_waited_for) {
    late_device & device = *new late_device(false);
    small_graph graph;
    hand head(true, {}, [](ggml_backend_t) {}, std::chrono::seconds(1), device.open());
    device.hold();
    const float values[4] = { 1, 2, 3, 4 };
    write_body write;
    write.buffer = 1;
    head.worker.write_body(3, write, values, sizeof values);
    read_body read;
    read.buffer = 1;
    read.size = sizeof values;
    head.worker.write_body(4, read);
    auto answer = std::async(std::launch::async, [&] { return head.take(); });
    CHECK(answer.wait_for(std::chrono::milliseconds(200)) == std::future_status::timeout);
    device.release();
    const auto said = answer.get();
    CHECK(said.first == message::data && said.second.size() == sizeof values);
    CHECK(std::memcmp(said.second.data(), values, sizeof values) == 0);
}
