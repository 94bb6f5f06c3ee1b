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

    const socket_pair pair;
    plain_channel & end;
};

static blob words() {
    return welcome_words().bytes();
}

static std::vector<client_device *> open_both(late_worker & first, late_worker & second) {
    auto heads = std::async(std::launch::async,
        [&] { return open_workers({ { first.pair.ends[0] }, { second.pair.ends[0] } }, &no_registry, no_weights); });
    CHECK(first.hears(message::hello) == 1 && second.hears(message::hello) == 1);
    second.end.write(message::welcome, 1, words());
    first.end.write(message::welcome, 1, words());
    return heads.get();
}

// What is lost later would end the process
static void end(const std::vector<client_device *> & devices) {
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
    late_worker first;
    late_worker second;
    const auto devices = open_both(first, second);
    CHECK(devices.size() == 2 && devices[0]->name == "MESH0" && devices[1]->name == "MESH1");
    CHECK(devices[1]->worker->place == 1 && devices[1]->worker->link.name() == "MESH1");
    end(devices);
}

TEST(a_worker_is_named_by_the_devices_before_it) {
    welcome_words two;
    two.devices = 2;
    late_worker first;
    late_worker second;
    auto heads = std::async(std::launch::async,
        [&] { return open_workers({ { first.pair.ends[0] }, { second.pair.ends[0] } }, &no_registry, no_weights); });
    first.end.write(message::welcome, first.hears(message::hello), two.bytes());
    second.end.write(message::welcome, second.hears(message::hello), words());
    const auto devices = heads.get();
    CHECK(devices.size() == 3 && devices[2]->name == "MESH2" && devices[2]->worker->link.name() == "MESH2");
    end(devices);
}

TEST(memory_that_is_promised_is_not_waited_for) {
    late_worker first;
    late_worker second;
    const auto devices = open_both(first, second);
    ggml_backend_buffer_ptr one(ggml_backend_buft_alloc_buffer(&devices[0]->buffer_type, 600));
    ggml_backend_buffer_ptr other(ggml_backend_buft_alloc_buffer(&devices[0]->buffer_type, 600));
    CHECK(one != nullptr && other != nullptr && devices[0]->held_bytes == 1200);
    connection & link = devices[0]->worker->link;
    CHECK(link.wait_all()); // nobody wants their answers
    allocated_body made;
    made.done = 1;
    first.end.write_body(first.hears(message::allocate), made);
    first.end.write_body(first.hears(message::allocate), made);
    const uint64_t sync = link.ask(message::sync, {}, message::synced, nullptr, 0);
    first.end.write(message::synced, first.hears(message::sync), {});
    CHECK(link.wait(sync));
    end(devices);
}

// Before it is served, and so it is the load that fails
TEST(a_promise_that_was_not_kept_is_seen_before_a_model_is_used) {
    told parent;
    late_worker first;
    late_worker second;
    const auto devices = open_both(first, second);
    ggml_backend_buffer_ptr memory(ggml_backend_buft_alloc_buffer(&devices[1]->buffer_type, 600));
    CHECK(memory != nullptr);
    second.end.write_body(second.hears(message::allocate), allocated_body());
    CHECK(ggml_backend_dev_init(&devices[1]->device, nullptr) == nullptr);
    const std::string size = std::to_string(devices[1]->lent_bytes);
    CHECK(parent.all() == "lost 1 it has no memory for a buffer of 600 bytes, and lends " + size + "\n");
    end({ devices[0] });
}

TEST(all_workers_load_before_one_is_waited_for) {
    late_worker first;
    late_worker second;
    const auto devices = open_both(first, second);
    auto opened = std::async(std::launch::async, [&] {
        for (client_device * device : devices) {
            CHECK(ggml_backend_dev_init(&device->device, nullptr) != nullptr);
        }
    });
    const uint64_t of_first = first.hears(message::sync);
    second.end.write(message::synced, second.hears(message::sync), {});
    first.end.write(message::synced, of_first, {});
    opened.get(); // the second asked for nothing more
    for (plain_channel * one : { &first.end, &second.end }) {
        std::thread([one] { // what is served has to live on
            for (;; std::this_thread::sleep_for(std::chrono::seconds(1))) {
                one->write_body(0, progress_body());
            }
        })
            .detach();
    }
}

// Nothing that was asked behind it would ever be settled, and nobody would wait for anything of it
TEST(a_worker_answers_for_memory_before_all_that_was_asked_behind_it) {
    told parent;
    late_worker first;
    late_worker second;
    const auto devices = open_both(first, second);
    ggml_backend_buffer_ptr memory(ggml_backend_buft_alloc_buffer(&devices[0]->buffer_type, 600));
    connection & link = devices[0]->worker->link;
    const uint64_t sync = link.ask(message::sync, {}, message::synced, nullptr, 0);
    first.end.write(message::synced, first.hears(message::sync), {});
    CHECK(!link.wait(sync));
    CHECK(parent.all() == "lost 0 it answers before it has answered ALLOCATE\n");
    end({ devices[1] });
}

TEST(what_was_asked_since_all_were_settled_is_settled_as_well) {
    told parent;
    late_worker first;
    late_worker second;
    const auto devices = open_both(first, second);
    auto opened = std::async(std::launch::async, [&] { return ggml_backend_dev_init(&devices[0]->device, nullptr); });
    first.end.write(message::synced, first.hears(message::sync), {});
    second.end.write(message::synced, second.hears(message::sync), {});
    CHECK(opened.get() != nullptr);
    live(first);
    ggml_backend_buffer_ptr memory(
        ggml_backend_buft_alloc_buffer(&devices[1]->buffer_type, 600)); // later, by another load
    opened = std::async(std::launch::async, [&] { return ggml_backend_dev_init(&devices[1]->device, nullptr); });
    second.end.write_body(second.hears(message::allocate), allocated_body());
    CHECK(opened.get() == nullptr);
    CHECK(parent.all().find("lost 1 it has no memory for a buffer of 600 bytes") == 0);
}
