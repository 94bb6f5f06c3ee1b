// Who looks before it sleeps, for how long, and when it stops to.
#include "check.h"
#include "lookout.h"

#include <cstdlib>

using namespace mesh;

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Sets GGML_MESH_WAITING for as long as it is, and then what had been chosen before
class chosen {
public:
    explicit chosen(const char * word) {
        const char * set = std::getenv(NAME);
        before = set == nullptr ? "sleep" : set;
        setenv(NAME, word, 1);
    }
    ~chosen() {
        setenv(NAME, before.c_str(), 1);
        choose_waiting();
    }
    // The message of what it throws
    std::string apply() const { return thrown_by(choose_waiting); }

private:
    static constexpr const char * NAME = "GGML_MESH_WAITING";
    std::string before;
};

// Stands still but where a test has it go on
struct still_clock {
    using duration = std::chrono::nanoseconds;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<still_clock>;
    static constexpr bool is_steady = true;
    static inline time_point time{ std::chrono::hours(1) };
    static time_point now() { return time; }
};

static constexpr rhythm::duration LOOK = microseconds(1); // what a look takes

// A place at which somebody waits
struct waiting_place {
    lookout_by<still_clock> next;
    int looks = 0;
    int naps = 0;
    rhythm::duration slept{ 0 };
    bool taken = false; // others need the processor

    // Waits for what comes after so long, and whether it looked until it was there
    bool wait(rhythm::duration coming) {
        looks = naps = 0;
        slept = rhythm::duration::zero();
        const auto due = still_clock::time + coming;
        bool found = false;
        long displaced = 0;
        const auto began = next.look(
            [&] {
                looks++;
                still_clock::time += LOOK;
                return found = still_clock::time >= due;
            },
            [&](rhythm::duration most) {
                naps++;
                slept += most;
                still_clock::time += most;
            },
            [&] { return taken ? ++displaced : 0; });
        still_clock::time = std::max(still_clock::time, due);
        next.came(began);
        return found;
    }
};

// A rhythm after some waits of about this length
static void learn(rhythm & one, rhythm::duration usual) {
    for (int i = 0; i < 32; i++) {
        one.passed(usual + microseconds(i % 2 == 0 ? 5 : -5));
    }
}

TEST(who_polls_does_so_unless_the_last_one_came_late) {
    const chosen way("poll");
    CHECK(way.apply().empty());
    waiting_place one;
    CHECK(!one.wait(3 * LOOK));
    CHECK(one.looks == 0);
    CHECK(one.wait(3 * LOOK));
    CHECK(one.looks == 3);
    CHECK(one.wait(lookout::LONGEST_POLL - LOOK));
    one.next.rest();
    CHECK(!one.wait(3 * LOOK));
    CHECK(one.looks == 0);
    CHECK(one.wait(3 * LOOK));
}

TEST(who_polls_in_vain_sleeps_the_next_time) {
    const chosen way("poll");
    CHECK(way.apply().empty());
    waiting_place one;
    one.wait(LOOK);
    CHECK(!one.wait(lookout::LONGEST_POLL + 2 * LOOK));
    CHECK(one.looks == lookout::LONGEST_POLL / LOOK);
    CHECK(one.naps == 0);
    CHECK(!one.wait(LOOK));
    CHECK(one.looks == 0);
}

TEST(who_takes_the_processor_from_others_rests_longer_and_longer) {
    const chosen way("poll");
    CHECK(way.apply().empty());
    waiting_place one;
    one.wait(LOOK);
    // How often it looks while somebody else has the processor in between
    const auto looks = [&] {
        one.taken = true;
        one.wait(5 * LOOK);
        one.taken = false;
        return one.looks;
    };
    for (auto rest = lookout::REST; rest < 8 * lookout::REST; rest *= 2) {
        const auto began = still_clock::time;
        CHECK(looks() == 1);
        still_clock::time = began + rest - LOOK;
        CHECK(looks() == 0);
        still_clock::time = began + rest;
    }
    CHECK(one.wait(3 * LOOK)); // this time it gets what it looks for
    const auto began = still_clock::time;
    CHECK(looks() == 1);
    still_clock::time = began + lookout::REST;
    CHECK(looks() == 1);
}

TEST(who_waits_by_rhythm_naps_until_shortly_before_and_then_polls) {
    const chosen way("timed");
    CHECK(way.apply().empty());
    waiting_place one;
    for (int i = 0; i < 40; i++) {
        one.wait(milliseconds(10));
    }
    CHECK(one.wait(milliseconds(10)));
    CHECK(one.naps >= 5);
    CHECK(one.looks * LOOK < microseconds(400));
    CHECK(one.slept > milliseconds(9));
    CHECK(one.wait(2 * LOOK));                    // what comes at once wakes it from a nap
    CHECK(!one.wait(2 * lookout::LONGEST_TIMED)); // a pause
    CHECK(!one.wait(milliseconds(10)));
    CHECK(one.looks == 0);
    CHECK(one.wait(milliseconds(10)));
}

TEST(nobody_looks_unless_it_is_chosen) {
    for (const char * none : { "sleep", "" }) {
        const chosen way(none);
        CHECK(way.apply().empty());
        waiting_place one;
        CHECK(!one.wait(LOOK));
        CHECK(!one.wait(LOOK));
        CHECK(one.looks == 0);
    }
    for (const char * odd : { "10", "polls", "Timed", " " }) {
        const chosen way(odd);
        CHECK(way.apply() == "GGML_MESH_WAITING is `timed`, `poll` or `sleep`, not `" + std::string(odd) + "`");
    }
}

TEST(a_rhythm_is_polled_for_when_it_is_due) {
    rhythm one;
    CHECK(one.rest(microseconds(0)) == rhythm::FOREVER);
    const auto usual = microseconds(3400);
    learn(one, usual);
    rhythm::duration waited{ 0 };
    int naps = 0;
    for (; one.rest(waited).count() > 0; naps++) {
        CHECK(one.rest(waited) != rhythm::FOREVER);
        waited += one.rest(waited);
    }
    CHECK(naps >= 4);
    CHECK(naps <= 8);
    CHECK(waited > usual - 3 * rhythm::LEAD);
    CHECK(waited < usual - rhythm::LEAD);
    CHECK(one.rest(usual).count() == 0);
    CHECK(one.rest(usual + rhythm::LEAD).count() == 0);
    CHECK(one.rest(usual + 3 * rhythm::LEAD) == rhythm::FOREVER);
}

TEST(what_is_due_at_once_is_polled_for) {
    rhythm one;
    learn(one, microseconds(150));
    for (int waited = 0; waited < 240; waited += 10) {
        CHECK(one.rest(microseconds(waited)).count() == 0);
    }
    CHECK(one.rest(microseconds(400)) == rhythm::FOREVER);
}

static bool same(const rhythm & one, const rhythm & other) {
    for (int waited = 0; waited < 20000; waited += 50) {
        if (one.rest(microseconds(waited)) != other.rest(microseconds(waited))) {
            return false;
        }
    }
    return true;
}

TEST(what_comes_at_once_and_single_odd_waits_change_no_rhythm) {
    rhythm one;
    rhythm other;
    learn(one, milliseconds(4));
    learn(other, milliseconds(4));
    for (const int odd : { 0, 20, 99, 12000, 1, 300, 800 }) {
        one.passed(microseconds(odd));
    }
    CHECK(same(one, other));
    for (int i = 0; i < 20; i++) {
        for (const int waited : { 4000, 4000, 4000, 9000, 500 }) {
            one.passed(microseconds(waited));
        }
    }
    CHECK(one.rest(microseconds(4000)).count() == 0);
}

TEST(the_long_waits_count_where_short_ones_are_between_them) {
    for (const int between : { 200, 600 }) {
        rhythm one;
        for (int i = 0; i < 60; i++) {
            one.passed(microseconds(i % 3 == 0 ? 5000 : between));
        }
        CHECK(one.rest(microseconds(5000)).count() == 0);
        CHECK(one.rest(microseconds(0)) > milliseconds(2));
    }
}

TEST(a_new_rhythm_is_learnt_and_none_is_not_polled_for) {
    rhythm one;
    learn(one, milliseconds(4));
    learn(one, milliseconds(12));
    CHECK(one.rest(milliseconds(4)) > milliseconds(3));
    CHECK(one.rest(milliseconds(12)).count() == 0);
    learn(one, milliseconds(3));
    CHECK(one.rest(milliseconds(3)).count() == 0);
    uint32_t dice = 1;
    for (int i = 0; i < 200; i++) {
        dice = dice * 1664525 + 1013904223;
        one.passed(microseconds(8000 + dice % 4000)); // all of them near, and none where it is expected
    }
    for (int waited = 50; waited < 20000; waited += 50) {
        CHECK(one.rest(microseconds(waited)) == rhythm::FOREVER);
    }
}

TEST(who_looks_for_a_while_does_so_however_the_process_waits) {
    const chosen way("sleep");
    CHECK(way.apply().empty());
    lookout_by<still_clock> next;
    int looks = 0;
    bool taken = false;
    // Whether what comes at the look of that number is found
    const auto finds = [&](int due, rhythm::duration most) {
        looks = 0;
        long displaced = 0;
        const auto is_there = [&] {
            still_clock::time += LOOK;
            return ++looks == due;
        };
        return next.look_for(most, is_there, [&] { return taken ? ++displaced : 0; });
    };
    CHECK(finds(1, rhythm::duration::zero()));
    CHECK(!finds(2, rhythm::duration::zero()));
    CHECK(finds(5, 5 * LOOK));
    CHECK(!finds(7, 5 * LOOK));
    CHECK(looks == 5);
    taken = true;
    CHECK(!finds(5, 5 * LOOK)); // somebody else had the processor in between
    taken = false;
    CHECK(!finds(2, 5 * LOOK));
    CHECK(looks == 1); // what is there is found all the same
    CHECK(finds(1, 5 * LOOK));
    still_clock::time += lookout::REST;
    taken = true;
    CHECK(!finds(5, 5 * LOOK)); // again: the next rest is twice as long, whatever was found meanwhile
    taken = false;
    still_clock::time += lookout::REST;
    CHECK(!finds(2, 5 * LOOK));
    still_clock::time += lookout::REST;
    CHECK(finds(5, 5 * LOOK));
}
