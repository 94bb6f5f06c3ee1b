// Who waits for what comes soon: to wake a thread on a processor that sleeps takes as long as a hidden state is under
// way. So a thread sleeps until shortly before the message is due, and polls from then on (docs/decisions/0066).
#pragma once

#include "rhythm.h"

#include <thread>

namespace mesh {

// How often another thread has taken the processor from this one, or been given it; 0 where that is not told
long times_displaced();

enum class waiting {
    sleep, // until the message is there
    timed, // sleep until shortly before it is due, then poll
    poll,  // without sleeping, as long as messages come soon after each other
};

// Of all in this process
inline std::atomic<waiting> way_of_waiting{ waiting::sleep };

// Takes it from GGML_MESH_WAITING; without the variable they sleep. Throws std::runtime_error
void choose_waiting();

// A place where one thread at a time waits. `Clock`: tests have their own
template <class Clock> class lookout_by {
public:
    using clock = Clock;
    using duration = rhythm::duration;

    // Looks until `ready` says yes, or the caller has to sleep; `nap` sleeps for so long at most, or until `ready`
    // would say yes. When it began, for came()
    template <class Ready, class Nap, class Displaced = long (*)()>
    typename clock::time_point look(
        const Ready & ready, const Nap & nap, const Displaced & displaced = times_displaced) {
        const auto began = clock::now();
        if (rest_after(duration::zero()) == rhythm::FOREVER || began.time_since_epoch() < rests_until.load()) {
            return began;
        }
        const long before = displaced();
        while (!ready()) {
            const duration left = rest_after(clock::now() - began);
            if (left == rhythm::FOREVER) {
                return began;
            }
            if (left > duration::zero()) {
                nap(left);
                continue;
            }
            if (!yields(before, displaced, began)) {
                return began;
            }
        }
        rest_next = REST;
        return began;
    }

    // Looks once, and then for so long at most, however this process waits: for what cannot take longer than it takes
    // to sleep and be woken. Whether it is there
    template <class Ready, class Displaced = long (*)()>
    bool look_for(duration most, const Ready & ready, const Displaced & displaced = times_displaced) {
        const auto began = clock::now();
        const bool rests = began.time_since_epoch() < rests_until.load();
        const long before = rests ? 0 : displaced();
        while (!ready()) {
            if (rests || clock::now() - began >= most || !yields(before, displaced, began)) {
                return false;
            }
        }
        if (!rests) {
            rest_next = REST;
        }
        return true;
    }

    // What was waited for is there
    void came(typename clock::time_point began) {
        const duration waited = clock::now() - began;
        soon = waited < longest();
        if (soon) {
            times.passed(waited);
        }
    }
    // The next one is not expected soon
    void rest() { soon = false; }

    // For so long nobody looks after another thread needed the processor, and twice as long each time
    static constexpr std::chrono::milliseconds REST{ 20 };
    static constexpr std::chrono::milliseconds MOST_REST{ 5000 };
    // Of waits, beyond which nobody looks
    static constexpr std::chrono::milliseconds LONGEST_POLL{ 10 };
    static constexpr std::chrono::milliseconds LONGEST_TIMED{ 50 };

private:
    // Whoever has something to do goes first. false: somebody had, so nobody looks for a while
    template <class Displaced> bool yields(long before, const Displaced & displaced, typename clock::time_point began) {
        std::this_thread::yield();
        if (displaced() == before) {
            return true;
        }
        rests_until = began.time_since_epoch() + rest_next.load();
        rest_next = std::min(2 * rest_next.load(), MOST_REST);
        return false;
    }

    static duration longest() { return way_of_waiting == waiting::poll ? LONGEST_POLL : LONGEST_TIMED; }

    // As rhythm::rest
    duration rest_after(duration waited) const {
        const waiting now = way_of_waiting;
        if (now == waiting::sleep || !soon || waited >= longest()) {
            return rhythm::FOREVER;
        }
        return now == waiting::poll ? duration::zero() : times.rest(waited);
    }

    std::atomic<bool> soon{ false }; // the last one came so
    rhythm times;
    std::atomic<typename clock::duration> rests_until{ clock::duration::zero() };
    std::atomic<std::chrono::milliseconds> rest_next{ REST };
};

using lookout = lookout_by<std::chrono::steady_clock>;

} // namespace mesh
