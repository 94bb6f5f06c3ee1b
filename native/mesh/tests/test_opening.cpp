// A head waits once for all of its workers, and not for what it was promised. Workers by hand answer as late as they
// can here: where the head waited for one before it asked the next, neither would go on.
#include "watched.h"
#include "welcoming.h"

#include "ggml-alloc.h"
#include "ggml-cpp.h"

using namespace mesh;

static ggml_backend_reg no_registry = {};
static const weights_index no_weights;

// A worker's end, for as long as the process is, as is what it answers
class late_worker {
public:
    late_worker() : end(*new plain_channel(pair.ends[1], sender::head)) {}

    // Reads up to the next of these. Its id
    uint64_t hears(message number) {
        wire_header header;
        while (end.read_header(header)) {
            end.read_body(header);
            if (static_cast<message>(header.kind) == number) {
                return header.id;
            }
        }
        throw std::runtime_error("the head ended");
    }

    // Says that it has no neighbours, and reads up to SYNC. Its id
    uint64_t settles() {
        end.write(message::met, hears(message::meet), {});
        return hears(message::sync);
    }

    const socket_pair pair;
    plain_channel & end;
};

// Two of them, and a head that opens both
class both {
public:
    explicit both(const welcome_words & of_first = welcome_words()) {
        auto opened = std::async(std::launch::async, [this] {
            return open_workers({ { first.pair.ends[0] }, { second.pair.ends[0] } }, &no_registry, no_weights);
        });
        CHECK(first.hears(message::hello) == 1 && second.hears(message::hello) == 1);
        second.end.write(message::welcome, 1, welcome_words().bytes());
        first.end.write(message::welcome, 1, of_first.bytes());
        devices = opened.get();
    }

    std::future<bool> open_backends(const std::vector<size_t> & numbers) {
        return std::async(std::launch::async, [this, numbers] {
            return std::all_of(numbers.begin(), numbers.end(),
                [this](size_t number) { return ggml_backend_dev_init(&devices[number]->device, nullptr) != nullptr; });
        });
    }
    connection & link(size_t number) { return devices[number]->worker->link; }

    told parent;
    late_worker first;
    late_worker second;
    std::vector<client_device *> devices;
};

static ggml_backend_buffer_ptr allocate(client_device * device) {
    ggml_backend_buffer_ptr made(ggml_backend_buft_alloc_buffer(&device->buffer_type, 600));
    CHECK(made != nullptr);
    return made;
}

// What is lost later would end the process
static void lose(const std::vector<client_device *> & devices) {
    for (client_device * device : devices) {
        device->worker->link.lose("the test is over");
    }
}

// What is served has to live on, for as long as the process does
static void live(const late_worker & worker) {
    std::thread([&end = worker.end] {
        for (;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
            end.write_body(0, progress_body());
        }
    }).detach();
}

TEST(all_workers_are_greeted_before_one_is_waited_for) {
    both workers;
    CHECK(workers.devices.size() == 2 && workers.devices[0]->name == "MESH0" && workers.devices[1]->name == "MESH1");
    CHECK(workers.devices[1]->worker->place == 1 && workers.link(1).name() == "MESH1");
    lose(workers.devices);
}

// A worker that is nearly too late leaves the next one no more time than there was
TEST(all_workers_have_one_time_for_their_welcome) {
    constexpr std::chrono::milliseconds PATIENCE{ 4000 }; // a quarter of it is left for a busy machine
    told parent;
    late_worker first;
    late_worker silent;
    const auto began = std::chrono::steady_clock::now();
    auto opened = std::async(std::launch::async, [&] {
        return thrown_by([&] {
            open_workers({ { first.pair.ends[0] }, { silent.pair.ends[0] } }, &no_registry, no_weights, 0, PATIENCE);
        });
    });
    first.hears(message::hello);
    std::this_thread::sleep_for(PATIENCE * 3 / 4);
    first.end.write(message::welcome, 1, welcome_words().bytes());
    CHECK(opened.get() == "the worker of MESH1 cannot be used");
    CHECK(std::chrono::steady_clock::now() - began < PATIENCE * 3 / 2);
    CHECK(parent.all() == "lost 1 it does not say WELCOME\n");
    first.end.shut();
}

TEST(a_worker_is_named_by_the_devices_before_it) {
    welcome_words two;
    two.devices = 2;
    both workers(two);
    CHECK(workers.devices.size() == 3 && workers.devices[2]->name == "MESH2" && workers.link(2).name() == "MESH2");
    lose(workers.devices);
}

TEST(memory_that_is_promised_is_not_waited_for) {
    both workers;
    const auto one = allocate(workers.devices[0]);
    const auto other = allocate(workers.devices[0]);
    CHECK(workers.devices[0]->held_bytes == 1200);
    CHECK(workers.link(0).wait_all()); // nobody wants their answers
    allocated_body made;
    made.done = 1;
    plain_channel & worker = workers.first.end;
    worker.write_body(workers.first.hears(message::allocate), made);
    worker.write_body(workers.first.hears(message::allocate), made);
    const uint64_t sync = workers.link(0).ask(message::sync, {}, message::synced, nullptr, 0);
    worker.write(message::synced, workers.first.hears(message::sync), {});
    CHECK(workers.link(0).wait(sync));
    lose(workers.devices);
}

// Before it is served, and so it is the load that fails
TEST(a_promise_that_was_not_kept_is_seen_before_a_model_is_used) {
    both workers;
    const auto memory = allocate(workers.devices[1]);
    workers.second.end.write_body(workers.second.hears(message::allocate), allocated_body());
    CHECK(!workers.open_backends({ 1 }).get());
    const std::string size = std::to_string(workers.devices[1]->lent_bytes);
    CHECK(workers.parent.all() == "lost 1 it has no memory for a buffer of 600 bytes, and lends " + size + "\n");
    lose({ workers.devices[0] });
}

// Nothing that was asked behind it would ever be settled, and nobody would wait for anything of it
TEST(a_worker_answers_for_memory_before_all_that_was_asked_behind_it) {
    both workers;
    const auto memory = allocate(workers.devices[0]);
    const uint64_t sync = workers.link(0).ask(message::sync, {}, message::synced, nullptr, 0);
    workers.first.end.write(message::synced, workers.first.hears(message::sync), {});
    CHECK(!workers.link(0).wait(sync));
    CHECK(workers.parent.all() == "lost 0 it answers before it has answered ALLOCATE\n");
    lose({ workers.devices[1] });
}

TEST(all_workers_load_before_one_is_waited_for) {
    welcome_words two;
    two.devices = 2;
    both workers(two);
    auto opened = workers.open_backends({ 0, 1, 2 });
    const uint64_t of_first = workers.first.settles();
    workers.second.end.write(message::synced, workers.second.settles(), {});
    workers.first.end.write(message::synced, of_first, {});
    CHECK(opened.get()); // neither was asked for anything more
    live(workers.first);
    live(workers.second);
}

TEST(what_was_asked_since_all_were_settled_is_settled_as_well) {
    both workers;
    auto opened = workers.open_backends({ 0 });
    workers.first.end.write(message::synced, workers.first.settles(), {});
    workers.second.end.write(message::synced, workers.second.settles(), {});
    CHECK(opened.get());
    live(workers.first);
    const auto memory = allocate(workers.devices[1]); // by another load
    opened = workers.open_backends({ 1 });
    const uint64_t asked = workers.second.hears(message::allocate);
    CHECK(opened.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
    workers.second.end.write_body(asked, allocated_body());
    CHECK(!opened.get());
    CHECK(workers.parent.all().find("lost 1 it has no memory for a buffer of 600 bytes") == 0);
}

// Answers may overtake one another, and neighbours may come later than all weights are there
TEST(a_model_is_used_once_neighbours_are_known) {
    both workers;
    auto opened = workers.open_backends({ 0 });
    for (late_worker * worker : { &workers.first, &workers.second }) {
        const uint64_t meet = worker->hears(message::meet);
        worker->end.write(message::synced, worker->hears(message::sync), {}); // may overtake
        if (worker == &workers.first) {
            CHECK(opened.wait_for(std::chrono::milliseconds(100)) == std::future_status::timeout);
        }
        writer numbers;
        numbers.put<uint32_t>(1);
        worker->end.write(message::met, meet, numbers.data);
    }
    CHECK(opened.get());
    CHECK(workers.devices[0]->worker->neighbours == std::unordered_set<uint32_t>{ 1 });
    live(workers.first);
    live(workers.second);
}
