// A worker says how far it is, and a head loses one that does not move on or says nothing.
#include "hand.h"
#include "report.h"
#include "watch.h"

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

TEST(who_waited_long_before_the_head_went_is_not_stuck) {
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
    doing.steps++; // slow, and not stuck
    counted.tick(0);
    CHECK(!counted.is_stuck());
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
        executor worker(devices, files, others, [](message, uint64_t, std::vector<uint8_t>) {});
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

// A worker by hand, which a connection has greeted and a watch sees
class watched_worker {
public:
    watched_worker(watch & all, uint32_t place) :
        link(*new connection(pair.ends[0], place, "MESH" + std::to_string(place))), end(pair.ends[1], sender::head) {
        std::thread welcoming([this] {
            wire_header hello;
            end.read_header(hello);
            end.read_body(hello);
            end.write_body(1, welcome_body());
        });
        std::vector<uint8_t> welcome;
        CHECK(link.greet("", welcome));
        welcoming.join();
        all.add(link, place);
    }

    // What its end means for the head is told before the next test begins
    ~watched_worker() {
        end.shut();
        while (!is_lost()) {
            std::this_thread::yield();
        }
    }

    void say(uint64_t done, uint64_t request = 0, uint32_t seconds = 0, uint32_t waits = 0) {
        progress_body body;
        body.done = done;
        body.request = request;
        body.seconds = seconds;
        body.waits = waits;
        body.node = 3;
        body.nodes = 9;
        end.write_body(0, body);
        for (progress_body got = link.report(); got.done != done || got.request != request || got.seconds != seconds;
            got = link.report()) {
            std::this_thread::yield();
        }
    }
    bool is_lost() { return !link.send(sync_body()); }

private:
    const socket_pair pair;
    connection & link; // for as long as the process is
    channel end;
};

// What the parent was told until now, line by line
class told {
public:
    told() {
        if (pipe(ends) != 0) {
            throw std::runtime_error("no pipe");
        }
        open_report(ends[1]);
    }
    std::string all() {
        char text[4096];
        const ssize_t n = read(ends[0], text, sizeof text);
        return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
    }

private:
    int ends[2];
};

TEST(a_worker_that_says_nothing_is_lost) {
    told parent;
    watch all;
    watched_worker silent(all, 0);
    watched_worker alive(all, 1);
    for (uint32_t second = 0; second <= HUNG_SECONDS; second++) {
        all.tick();
        alive.say(second + 1);
    }
    CHECK(!silent.is_lost());
    all.tick();
    CHECK(silent.is_lost() && !alive.is_lost());
    CHECK(parent.all() == "lost 0 it has said nothing for 21 s\n");
}

TEST(a_worker_that_never_says_welcome_is_lost) {
    told parent;
    const socket_pair pair;
    auto & link = *new connection(pair.ends[0], 2, "MESH2");
    std::vector<uint8_t> welcome;
    CHECK(!link.greet("", welcome, std::chrono::milliseconds(5)));
    CHECK(parent.all() == "lost 2 it does not say WELCOME\n");
    close(pair.ends[1]);
}

TEST(a_worker_that_does_not_move_on_is_lost) {
    told parent;
    watch all;
    watched_worker stuck(all, 4);
    stuck.say(1, 2, HUNG_SECONDS - 1);
    all.tick();
    CHECK(!stuck.is_lost());
    stuck.say(1, 2, HUNG_SECONDS);
    all.tick();
    CHECK(stuck.is_lost());
    CHECK(parent.all() == "lost 4 it has not moved on for 20 s, behind node 3 of 9\n");
}

TEST(a_worker_may_wait_for_a_neighbour_that_works) {
    told parent;
    watch all;
    watched_worker first(all, 0);
    watched_worker second(all, 1);
    second.say(1, 2, HUNG_SECONDS, 1);
    first.say(1, 2, 3); // computes
    all.tick();
    CHECK(!second.is_lost()); // which asks it something, and so does this:
    CHECK(!first.is_lost());
    first.say(1);
    all.tick();
    CHECK(!second.is_lost()); // the first one has not been done with all that it was asked
    first.say(2);
    all.tick();
    CHECK(second.is_lost());
    CHECK(parent.all() == "lost 1 it has waited for neighbour 0 for 20 s\n");
}

TEST(a_report_is_one_line) {
    told parent;
    report("failed a\nb\x1b[2J " + std::string(600, 'x'));
    const std::string line = parent.all();
    CHECK(line.size() == 512 && line.find("failed a b [2J x") == 0 && line.back() == '\n');
    CHECK(line.find('\n') == line.size() - 1);
}
