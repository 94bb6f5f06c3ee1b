// A head loses a worker that says nothing, does not move on, or is owed too much by, whatever that one says of itself.
#include "watched.h"

using namespace mesh;

TEST(a_worker_that_says_nothing_is_lost) {
    told parent;
    watch all;
    watched_worker silent(all, 0);
    watched_worker alive(all, 1);
    for (uint32_t second = 0; second <= HUNG_SECONDS; second++) {
        all.tick();
        alive.say(1, 0, second);
    }
    CHECK(!silent.is_lost());
    all.tick();
    CHECK(silent.is_lost() && !alive.is_lost());
    CHECK(parent.all() == "lost 0 it has said nothing for 21 s\n");
}

TEST(a_path_may_be_silent_for_its_grace) {
    static constexpr uint32_t GRACE = 90;
    told parent;
    watch all(GRACE);
    watched_worker silent(all, 0);
    watched_worker alive(all, 1);
    silent.is_asked(); // what it owes may take as much longer
    alive.is_asked();
    for (uint32_t second = 0; second <= HUNG_SECONDS + GRACE; second++) {
        all.tick();
        CHECK(!silent.is_lost());
        alive.say(1, 2, 0);
    }
    alive.say(1, 2, HUNG_SECONDS + GRACE - 1, 1); // waits for the other one, which has its own path to it
    CHECK(!alive.is_lost());
    all.tick();
    CHECK(silent.is_lost() && !alive.is_lost());
    CHECK(parent.all() == "lost 0 it has said nothing for 111 s\n");
}

TEST(what_a_device_does_has_no_grace) {
    told parent;
    watch all(90);
    watched_worker stuck(all, 4);
    stuck.is_asked();
    stuck.say(1, 2, HUNG_SECONDS);
    all.tick();
    CHECK(stuck.is_lost());
}

TEST(a_grace_is_a_number) {
    CHECK(watch::grace_of_parent() == 0);
    for (const char * odd : { "", "-1", "1000001", "10 s" }) {
        setenv("GGML_MESH_GRACE", odd, 1);
        CHECK(
            thrown_by([] { watch::grace_of_parent(); }).find("a number of seconds up to 1000000") != std::string::npos);
    }
    setenv("GGML_MESH_GRACE", "120", 1);
    CHECK(watch::grace_of_parent() == 120);
    unsetenv("GGML_MESH_GRACE");
}

TEST(a_worker_that_never_says_welcome_is_lost) {
    told parent;
    const socket_pair pair;
    auto & link = *new connection(pair.ends[0], 2, "MESH2");
    blob welcome;
    CHECK(!link.greet("") ||
          !link.await_welcome(welcome, std::chrono::steady_clock::now() + std::chrono::milliseconds(5)));
    CHECK(parent.all() == "lost 2 it does not say WELCOME\n");
    close(pair.ends[1]);
}

TEST(a_worker_that_does_not_move_on_is_lost) {
    told parent;
    watch all;
    watched_worker stuck(all, 4);
    stuck.is_asked();
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
    first.is_asked();
    second.is_asked();
    second.say(1, 2, HUNG_SECONDS, 1);
    first.say(1, 2, 3); // computes
    all.tick();
    CHECK(!second.is_lost() && !first.is_lost());
    first.say(1);
    all.tick();
    CHECK(!second.is_lost()); // the first one has not done all that it was asked
    first.say(2);
    all.tick();
    CHECK(second.is_lost());
    CHECK(parent.all() == "lost 1 it has waited for neighbour 0 for 20 s\n");
}

TEST(a_report_is_one_line) {
    told parent;
    report("failed a\nb\x1b[2J \xc3\xa4" + std::string(600, 'x'));
    const std::string line = parent.all();
    CHECK(line.size() == 512 && line.find("failed a\\x0ab\\x1b[2J \\xc3\\xa4x") == 0 && line.back() == '\n');
    CHECK(line.find('\n') == line.size() - 1);
}

TEST(a_worker_that_claims_progress_for_ever_is_lost) {
    told parent;
    watch all;
    watched_worker liar(all, 0);
    liar.is_asked();
    for (uint32_t second = 0; second < 600; second++) { // before the first graph
        liar.say(1, 2, second % 2);
        all.tick();
    }
    CHECK(!liar.is_lost());
    liar.say(1, 2);
    all.tick();
    CHECK(liar.is_lost());
    CHECK(parent.all() == "lost 0 it does not answer: requests have waited for 601 s\n");
}

TEST(much_progress_is_no_reason_to_wait_longer) {
    told parent;
    watch all;
    watched_worker liar(all, 0);
    liar.is_asked();
    writer words;
    for (int i = 0; i < 400; i++) { // more than PASSING_RATE
        put_header(words, message::progress, 0, progress_body::bytes);
        progress_body body;
        body.done = 1;
        body.put(words);
    }
    uint32_t seconds = 0;
    for (; !liar.is_lost() && seconds < 1000; seconds++) {
        const uint64_t before = liar.link.received();
        for (size_t at = 0; at < words.data.size();) {
            at += liar.end.send_some(words.data.data() + at, words.data.size() - at);
        }
        while (liar.link.received() != before + words.data.size()) {
            std::this_thread::yield();
        }
        all.tick();
    }
    CHECK(seconds > 600 && seconds < 620);
}

TEST(workers_that_say_they_wait_for_each_other_are_lost) {
    told parent;
    watch all;
    watched_worker first(all, 0);
    watched_worker second(all, 1);
    first.is_asked();
    second.is_asked();
    for (uint32_t i = 0; i < 601; i++) {
        first.say(1, 2, HUNG_SECONDS + i, 2);
        second.say(1, 2, HUNG_SECONDS + i, 1);
        CHECK(!first.is_lost() && !second.is_lost());
        all.tick();
    }
    CHECK(first.is_lost() && second.is_lost());
    const std::string late = "it does not answer: requests have waited for 601 s; it says that it waits for neighbour ";
    CHECK(parent.all() == "lost 0 " + late + "1\nlost 1 " + late + "0\n");
}

TEST(a_worker_waits_for_none_that_there_is_not) {
    told parent;
    watch all;
    watched_worker itself(all, 3);
    watched_worker other(all, 1);
    itself.say(1, 0, 0, 4);
    other.say(1, 0, 0, 3);
    all.tick();
    CHECK(itself.is_lost() && other.is_lost());
    CHECK(parent.all() == "lost 3 it says that it waits for neighbour 3, which it does not have\n"
                          "lost 1 it says that it waits for neighbour 2, which it does not have\n");
}

TEST(a_worker_that_does_not_read_is_lost) {
    told parent;
    watch all;
    watched_worker deaf(all, 0);
    const blob much(PIECE_BYTES);
    CHECK(deaf.link.send(write_body(), much.data(), much.size()));
    uint32_t seconds = 0; // at first its socket takes something
    for (; !deaf.is_lost() && seconds < 1000; seconds++) {
        deaf.say(1, 0, seconds);
        all.tick();
    }
    CHECK(seconds > 600 && seconds < 700);
    CHECK(parent.all().find("lost 0 it does not read: requests have waited for 60") == 0);
}

TEST(an_answer_that_comes_byte_by_byte_is_not_waited_for) {
    told parent;
    watch all;
    watched_worker slow(all, 0);
    blob target(PIECE_BYTES);
    CHECK(slow.link.ask(read_body(), message::data, target.data(), target.size()) == 2);
    writer header;
    put_header(header, message::data, 2, target.size());
    slow.end.send_some(header.data.data(), header.data.size());
    uint32_t seconds = 0;
    for (; !slow.is_lost() && seconds < 1000; seconds++) {
        const uint64_t before = slow.link.received();
        slow.end.send_some("x", 1);
        while (slow.link.received() == before) {
            std::this_thread::yield();
        }
        all.tick();
    }
    CHECK(seconds == 601); // before the first graph
    CHECK(parent.all() == "lost 0 it does not answer: requests have waited for 601 s\n");
}
