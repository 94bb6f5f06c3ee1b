// A worker that breaks rules: its head loses it, and takes no harm.
#include "client.h"
#include "watched.h"

#include "ggml-backend-impl.h"

#include <sys/mman.h>
#include <sys/stat.h>

using namespace mesh;

// What the head says to its parent about a worker that does this once it is greeted
static std::string lost_by(const std::function<void(watched_worker &)> & does) {
    told parent;
    watch all;
    watched_worker worker(all, 0);
    does(worker);
    worker.await_loss();
    return parent.all();
}

static void answer(watched_worker & worker, message number, uint64_t id, size_t size) {
    worker.end.write(number, id, blob(size));
}

TEST(progress_that_cannot_be_is_refused) {
    const std::string not_asked = "lost 0 it says that it does what it was not asked, or has undone what it had done\n";
    CHECK(lost_by([](watched_worker & it) { it.say_only(2); }) == not_asked);
    CHECK(lost_by([](watched_worker & it) { it.say_only(1, 2); }) == not_asked);
    CHECK(lost_by([](watched_worker & it) { it.say_only(~0ull); }) == not_asked);
    CHECK(lost_by([](watched_worker & it) {
        it.is_asked();
        it.say_only(2);
        it.say_only(1);
    }) == not_asked);
    uint8_t byte;
    CHECK(lost_by([&](watched_worker & it) {
        CHECK(it.link.ask(read_body(), message::data, &byte, 1) == 2);
        it.say_only(2);
    }) == "lost 0 it says that it has done what it has not answered\n");
    CHECK(lost_by([](watched_worker & it) { it.say_only(1, 0, 0, 0, 7); }) ==
          "lost 0 it says PROGRESS as an answer, or before WELCOME\n");
}

TEST(progress_before_welcome_is_refused) {
    told parent;
    const socket_pair pair;
    auto & link = *new connection(pair.ends[0], 0, "MESH0");
    plain_channel end(pair.ends[1], sender::head);
    end.write_body(0, progress_body());
    blob welcome;
    CHECK(!link.greet("") || !link.await_welcome(welcome, std::chrono::steady_clock::now() + std::chrono::seconds(30)));
    CHECK(parent.all() == "lost 0 it says PROGRESS as an answer, or before WELCOME\n");
}

TEST(answers_that_nobody_asked_for_are_refused) {
    const std::string not_asked = "lost 0 it answers what was not asked\n";
    uint8_t bytes[8];
    CHECK(lost_by([](watched_worker & it) { answer(it, message::synced, 1, 0); }) == not_asked);
    CHECK(lost_by([](watched_worker & it) { answer(it, message::data, 0, 8); }) == not_asked);
    CHECK(lost_by([](watched_worker & it) { it.end.write_body(1, welcome_body()); }) == not_asked);
    const auto asked = [&](message number, uint64_t id, size_t size) {
        return lost_by([&](watched_worker & it) {
            CHECK(it.link.ask(read_body(), message::data, bytes, sizeof bytes) == 2);
            answer(it, number, id, size);
        });
    };
    CHECK(asked(message::loaded, 2, 8) == not_asked);
    CHECK(asked(message::data, 3, 8) == not_asked);
    CHECK(asked(message::data, 2, 7) == "lost 0 it answers with another number of bytes than was asked for\n");
    CHECK(asked(message::data, 2, 9) == "lost 0 it answers with another number of bytes than was asked for\n");
    CHECK(lost_by([](watched_worker & it) { // before a byte of it
        writer header;
        put_header(header, message::data, 2, PIECE_BYTES + 1);
        it.end.send_some(header.data.data(), header.data.size());
    }) == "lost 0 message 134 cannot have 4194305 bytes\n");
    CHECK(lost_by([&](watched_worker & it) { // twice
        CHECK(it.link.ask(read_body(), message::data, bytes, sizeof bytes) == 2);
        answer(it, message::data, 2, 8);
        answer(it, message::data, 2, 8);
    }) == not_asked);
}

TEST(an_answer_out_of_order_leaves_the_earlier_one_owed) {
    told parent;
    watch all;
    watched_worker worker(all, 0);
    uint8_t bytes[2] = { 0, 0 };
    CHECK(worker.link.ask(read_body(), message::data, &bytes[0], 1) == 2);
    CHECK(worker.link.ask(read_body(), message::data, &bytes[1], 1) == 3);
    worker.end.write(message::data, 3, { 7 });
    CHECK(worker.link.wait(3) && bytes[1] == 7);
    for (uint32_t second = 0; second <= 600; second++) {
        CHECK(!worker.is_lost());
        worker.say(1, 2, second % 2);
        all.tick();
    }
    CHECK(worker.is_lost() && bytes[0] == 0);
}

TEST(an_answer_is_whole_before_a_byte_of_it_is_anywhere) {
    told parent;
    watch all;
    watched_worker worker(all, 0);
    blob target(PIECE_BYTES, 0xaa);
    const uint64_t id = worker.link.ask(read_body(), message::data, target.data(), target.size());
    writer half;
    put_header(half, message::data, id, target.size());
    half.data.resize(half.data.size() + 5000, 0);
    const uint64_t before = worker.link.received();
    worker.end.send_some(half.data.data(), half.data.size());
    while (worker.link.received() != before + half.data.size()) {
        std::this_thread::yield();
    }
    CHECK(target == blob(PIECE_BYTES, 0xaa));
    worker.link.lose("the load was given up");
    CHECK(!worker.link.wait(id));
    target = blob(); // and nobody writes there any more
}

// One with much on its way to a target that is freed: what comes later must not be written
TEST(a_worker_that_is_lost_in_an_answer_writes_nowhere) {
    constexpr uint64_t COUNT = 8;
    for (int round = 0; round < 20; round++) {
        told parent;
        watch all;
        watched_worker worker(all, 0);
        std::vector<blob> targets(COUNT, blob(PIECE_BYTES));
        for (auto & target : targets) {
            CHECK(worker.link.ask(read_body(), message::data, target.data(), target.size()) != 0);
        }
        std::thread sending([&] {
            const blob data(PIECE_BYTES);
            try {
                for (uint64_t id = 2; id < 2 + COUNT; id++) {
                    worker.end.write(message::data, id, {}, data.data(), data.size());
                }
            } catch (const lost &) {
                // the head has gone
            }
        });
        while (worker.link.received() < (1u << 19) * static_cast<uint64_t>(round)) {
            std::this_thread::yield();
        }
        worker.link.lose("given up");
        CHECK(!worker.link.wait_all());
        targets.clear();
        sending.join();
    }
}

#ifdef __linux__ // where the head knows what it has mapped

// Weights of the head's file, which is cut off after it was mapped
class cut_file {
public:
    cut_file() {
        char name[] = "/tmp/mesh-tests-XXXXXX";
        descriptor = mkstemp(name);
        CHECK(descriptor >= 0 && ftruncate(descriptor, SIZE) == 0);
        address = mmap(nullptr, SIZE, PROT_READ, MAP_SHARED, descriptor, 0);
        path = name;
        struct stat is = {};
        CHECK(address != MAP_FAILED && fstat(descriptor, &is) == 0);
        weights_file file = {};
        file.descriptor = -1;
        file.size = SIZE;
        file.mtime_ns = is.st_mtim.tv_sec * 1000000000ll + is.st_mtim.tv_nsec;
        file.ctime_ns = is.st_ctim.tv_sec * 1000000000ll + is.st_ctim.tv_nsec;
        file.inode = is.st_ino;
        index = weights_index("meshd-weights 1\nfile 0 -1 " + std::to_string(file.size) + " " +
                              std::to_string(file.mtime_ns) + " " + std::to_string(file.ctime_ns) + " " +
                              std::to_string(file.inode) + "\ntensor 0 0 0 16 " + std::string(64, 'a') + " one\nend\n");
    }
    ~cut_file() {
        munmap(address, SIZE);
        close(descriptor);
        unlink(path.c_str());
    }
    void cut() { CHECK(ftruncate(descriptor, 0) == 0); }

    static constexpr size_t SIZE = 4096;
    void * address;
    weights_index index;

private:
    int descriptor;
    std::string path;
};

TEST(weights_that_cannot_be_sent_leave_no_answer_without_a_place) {
    told parent;
    watch all;
    watched_worker worker(all, 0);
    cut_file file;
    auto loading = std::make_unique<weights_loading>(worker.link, file.index);
    for (uint32_t i = 0; i <= LOAD_ENTRIES; i++) { // one more than the first request takes
        CHECK(loading->take(1, 16 * i, GGML_TYPE_F32, file.address, 16));
    }
    file.cut();
    worker.end.write(message::loaded, 2, blob(LOAD_ENTRIES, 1));
    CHECK(!loading->settle()); // the worker lacks the first, and they are not to be had
    answer(worker, message::loaded, 3, 1);
    CHECK(worker.link.wait_all());
    CHECK(!loading->settle());
}

#endif
