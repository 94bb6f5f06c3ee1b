// How long a head waits for a worker: by ticks, and by nothing that the worker says of itself.
#include "check.h"
#include "owed_answers.h"

using namespace mesh;

static constexpr uint32_t FOR_EVER = 1000000;

// Ticks until there is a complaint
static uint32_t patience(owed_answers & owed, uint64_t passed = 0, bool unsent = false) {
    for (uint32_t seconds = 1; seconds < FOR_EVER; seconds++) {
        if (!owed.tick(passed, unsent).empty()) {
            return seconds;
        }
    }
    return FOR_EVER;
}

// Of a worker that has computed something, without inputs
struct proven : owed_answers {
    proven() {
        add(message::compute, 1, 0);
        settle(1);
    }
};

static void work(owed_answers & owed, uint32_t seconds) {
    for (uint32_t i = 0; i < seconds; i++) {
        CHECK(owed.tick(0, false).empty());
    }
}

TEST(an_answer_is_waited_for_for_a_minute) {
    proven owed;
    owed.add(message::read, 2, 0);
    CHECK(!owed.is_empty() && patience(owed) == 61);
    proven again;
    again.add(message::read, 2, 0);
    again.add(message::sync, 3, 0);
    work(again, 60);
    again.settle(2);
    CHECK(patience(again) == 61);
    again.settle(3);
    CHECK(again.is_empty() && patience(again) == FOR_EVER);
}

TEST(what_nobody_waits_for_is_not_owed) {
    proven owed;
    owed.add(message::write, 2, 100);
    owed.add(message::fill, 3, 0);
    owed.add(message::copy, 4, 0);
    owed.add(message::free, 5, 0);
    CHECK(owed.is_empty() && patience(owed) == FOR_EVER);
    owed.add(message::sync, 6, 0);
    CHECK(patience(owed) == 61);
}

TEST(who_does_not_read_is_not_waited_for) {
    proven owed;
    owed.add(message::write, 2, 100);
    CHECK(patience(owed, 0, true) == 61);
    CHECK(owed.tick(0, true) == "it does not read: requests have waited for 62 s");
}

TEST(before_the_first_graph_all_may_last_longer) {
    owed_answers owed;
    owed.add(message::allocate, 1, 0);
    CHECK(patience(owed) == 601);
    owed.settle(1);
    owed.add(message::write, 2, 1);
    CHECK(patience(owed, 0, true) == 601);
}

TEST(weights_are_waited_for_by_their_bytes) {
    owed_answers owed;
    owed.add(message::load, 1, 300ull << 20);
    CHECK(patience(owed) == 901);
    proven small; // of a second model
    small.add(message::load, 2, 100);
    CHECK(patience(small) == 601);
}

TEST(the_first_graph_is_waited_for_longest) {
    owed_answers owed;
    owed.add(message::write, 1, 1000);
    owed.add(message::graph, 2, 1000);
    owed.add(message::read, 3, 0);
    CHECK(patience(owed) == 601);
}

// A step of a graph, which takes so long
static void step(owed_answers & owed, uint64_t id, uint64_t inputs, uint32_t seconds) {
    owed.add(message::write, id, inputs);
    owed.add(message::compute, id + 1, 0);
    work(owed, seconds);
    owed.settle(id + 1);
}

TEST(a_graph_is_waited_for_as_those_before_were) {
    owed_answers owed;
    step(owed, 1, 1024, 128);
    owed.add(message::write, 3, 1024); // no more inputs than before
    owed.add(message::compute, 4, 0);
    CHECK(patience(owed) == 2 * 128 + 1);
    owed_answers more;
    step(more, 1, 1024, 128);
    more.add(message::write, 3, 20 * 1024);
    more.add(message::compute, 4, 0);
    CHECK(patience(more) == 4 * 20 * 128 + 1);
}

TEST(fast_graphs_are_waited_for_for_a_minute) {
    owed_answers owed;
    step(owed, 1, 1000, 1);
    owed.add(message::compute, 3, 0);
    CHECK(patience(owed) == 61);
}

TEST(what_passes_is_not_waited_for) {
    proven owed;
    owed.add(message::read, 2, 0);
    CHECK(patience(owed, 1 << 14) == FOR_EVER); // whoever asks knows how many bytes there can be
    CHECK(patience(owed, 1 << 13) == 121);
}

TEST(a_worker_is_not_blamed_for_what_another_one_has_not_pushed) {
    std::atomic<uint64_t> pusher{ 0 };
    proven owed;
    CHECK(owed.is_empty());
    owed.add_take(2, 1 << 20, pusher, 9);
    CHECK(!owed.is_empty() && patience(owed) == FOR_EVER); // it is neither idle nor late
    owed.add(message::sync, 3, 0);
    CHECK(owed.at() == 2);
    CHECK(patience(owed) == FOR_EVER);
    pusher = 9;
    CHECK(owed.at() == 3);
    CHECK(patience(owed) == 61 + 64); // a MiB may be on its way so long
}

TEST(a_worker_is_not_blamed_for_what_another_one_does_not_take_yet) {
    std::atomic<uint64_t> taker{ 3 };
    proven owed;
    owed.add(message::push, 2, 0);
    owed.add_taker(2, taker, 5);
    owed.add(message::compute, 3, 0);
    CHECK(owed.at() == 2 && patience(owed) == FOR_EVER);
    taker = 5; // it is there, and does nothing but wait
    CHECK(patience(owed) == 61);
}

TEST(of_workers_that_wait_for_each_other_one_is_always_counted) {
    std::atomic<uint64_t> settled[2] = { { 0 }, { 0 } };
    std::atomic<uint64_t> at[2] = { { UINT64_MAX }, { UINT64_MAX } };
    owed_answers owed[2];
    uint64_t ids[2] = { 0, 0 };
    for (int i = 0; i < 12; i++) { // there and back again
        const int from = i % 2;
        const int to = 1 - from;
        const uint64_t push = ++ids[from];
        owed[from].add(message::push, push, 0);
        const uint64_t take = ++ids[to];
        owed[to].add_take(take, 1, settled[from], push);
        owed[from].add_taker(push, at[to], take);
        if (i % 3 == 0) {
            owed[to].add(message::compute, ++ids[to], 0);
        }
    }
    owed[0].add(message::sync, ++ids[0], 0);
    owed[1].add(message::sync, ++ids[1], 0);
    // the worker that is counted does one request more, until all are done
    while (!owed[0].is_empty() || !owed[1].is_empty()) {
        int late = -1;
        for (uint32_t seconds = 0; late < 0; seconds++) {
            CHECK(seconds < FOR_EVER);
            for (int i = 0; i < 2; i++) {
                late = !owed[i].tick(0, false).empty() ? i : late;
                at[i] = owed[i].at();
            }
        }
        owed[late].settle(++settled[late]);
        at[late] = owed[late].at();
    }
}
