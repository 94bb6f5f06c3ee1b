// A worker says how far it is, and is given up where its head is gone and a device does not come back.
#include "hand.h"

#include "ggml-backend-impl.h"

#include <ctime>
#include <future>

using namespace mesh;

TEST(seconds_count_while_nothing_moves_on) {
    progress doing;
    progress_watch counted(doing, false);
    CHECK(counted.tick(0).seconds == 0);
    CHECK(counted.tick(0).seconds == 0); // nothing to do is no standstill
    doing.request = 7;
    CHECK(counted.tick(0).seconds == 0);
    CHECK(counted.tick(0).seconds == 1 && counted.tick(0).seconds == 2);
    doing.steps++;
    CHECK(counted.tick(0).seconds == 0 && counted.tick(0).seconds == 1);
    CHECK(counted.tick(5).seconds == 0 && counted.tick(5).seconds == 1); // bytes from a neighbour
    doing.node = 3;
    doing.waits = 2;
    const progress_body body = counted.tick(5);
    CHECK(body.seconds == 2 && body.request == 7 && body.node == 3 && body.waits == 2);
    doing.request = 8;
    CHECK(counted.tick(5).seconds == 0);
}

TEST(who_waited_long_before_the_head_went_is_not_stuck) { // but has as long as anybody from then on
    progress doing;
    progress_watch counted(doing, false);
    doing.request = 7;
    for (uint32_t i = 0; i < 2 * HUNG_SECONDS; i++) {
        counted.tick(0);
    }
    doing.cancelled = true; // and is woken, but the next second may pass before
    for (uint32_t i = 1; i < HUNG_SECONDS; i++) {
        CHECK(counted.tick(0).seconds > HUNG_SECONDS && !counted.is_stuck());
    }
    counted.tick(0);
    CHECK(counted.is_stuck());
}

TEST(what_moves_on_without_a_head_ends_all_the_same) {
    progress doing;
    progress_watch counted(doing, true);
    doing.request = 7;
    doing.cancelled = true;
    for (uint32_t i = 1; i < HUNG_SECONDS; i++) {
        doing.steps++;
        doing.request++;
        CHECK(counted.tick(i).seconds == 0 && !counted.is_stuck());
    }
    doing.steps++;
    counted.tick(HUNG_SECONDS);
    CHECK(counted.is_stuck());
}

TEST(a_cpu_that_computes_moves_on) {
    progress doing;
    doing.request = 1;
    progress_watch by_cpu(doing, true);
    progress_watch by_device(doing, false);
    by_cpu.tick(0);
    by_device.tick(0);
    const clock_t start = clock();
    while (clock() - start < CLOCKS_PER_SEC / 10) {
    }
    CHECK(by_cpu.tick(0).seconds == 0 && by_device.tick(0).seconds == 1);
}

TEST(a_graph_counts_its_nodes_and_ends_when_it_is_cancelled) {
    ggml_backend_t cpu = ggml_backend_cpu_init();
    {
        const std::vector<lent_device> devices = { { cpu, 1 << 20 } };
        const local_weights files;
        neighbours others({});
        executor worker(devices, files, others, [](message, uint64_t, blob) {});
        uint64_t id = 0;
        const auto ask = [&](message number, const writer & body) {
            wire_header header;
            header.kind = static_cast<uint16_t>(number);
            header.id = ++id;
            worker.handle(header, body.data);
        };
        writer hello;
        hello.put(VERSION);
        hello.put_text(ggml_release());
        ask(message::hello, hello);
        allocate_body memory;
        memory.buffer = 1;
        memory.size = 4096;
        writer allocate;
        memory.put(allocate);
        ask(message::allocate, allocate);
        writer graph;
        small_graph().body.put(graph);
        graph.put_text(small_graph().bytes());
        ask(message::graph, graph);
        CHECK(worker.doing.nodes == 1 && worker.doing.done == 3 && worker.doing.request == 0);
        const uint64_t steps = worker.doing.steps;
        CHECK(steps > 0);
        worker.doing.cancelled = true;
        CHECK(thrown_by([&] { ask(message::graph, graph); }) == interrupted().what());
        CHECK(thrown_by([&] { ask(message::allocate, allocate); }) == interrupted().what()); // nor anything else
    }
    ggml_backend_free(cpu);
}

static std::promise<void> come_back;

static ggml_status hang(ggml_backend_t, ggml_cgraph *) {
    come_back.get_future().wait();
    return GGML_STATUS_FAILED;
}

TEST(a_device_that_hangs_is_told_and_given_up) {
    hand head(
        true, {}, [](ggml_backend_t backend) { backend->iface.graph_compute = hang; }, std::chrono::milliseconds(1));
    small_graph graph;
    const std::string bytes = graph.bytes();
    head.worker.write_body(50, graph.body, bytes.data(), bytes.size());
    progress_body body;
    while (body.request != 50 || body.seconds < HUNG_SECONDS) {
        const auto said = head.take_any();
        CHECK(said.first == message::progress);
        reader in(said.second);
        body = progress_body::take(in);
    }
    CHECK(body.done == 2 && body.waits == 0 && body.nodes == 1);
    CHECK(!head.server.abandoned);
    head.worker.shut();
    while (!head.server.abandoned) {
        std::this_thread::yield();
    }
    come_back.set_value();
    head.server.end();
}

TEST(bytes_of_another_neighbour_are_no_progress) {
    const socket_pair silent;
    const socket_pair loud;
    hand head(
        true, { { 3, silent.ends[0] }, { 4, loud.ends[0] } }, [](ggml_backend_t) {}, std::chrono::milliseconds(10));
    take_body take;
    take.neighbour = 3;
    take.buffer = 1;
    take.size = 8;
    head.worker.write_body(50, take);
    writer header;
    put_header(header, message::pushed, 0, pushed_body::bytes + PIECE_BYTES);
    CHECK(send(loud.ends[1], header.data.data(), header.data.size(), MSG_NOSIGNAL) == wire_header::bytes);
    progress_body body;
    for (int i = 0; i < 60 && (body.request != 50 || body.seconds < HUNG_SECONDS); i++) {
        CHECK(send(loud.ends[1], "x", 1, MSG_NOSIGNAL) == 1);
        const auto said = head.take_any();
        CHECK(said.first == message::progress);
        reader in(said.second);
        body = progress_body::take(in);
    }
    CHECK(body.request == 50 && body.seconds >= HUNG_SECONDS && body.waits == 4);
    head.worker.shut();
    CHECK(head.server.end() == "");
    close(silent.ends[1]);
    close(loud.ends[1]);
}
