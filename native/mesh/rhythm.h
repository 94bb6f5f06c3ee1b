// When what is waited for will come, by how long the last waits for it took: the tokens of an answer follow each other
// evenly. Pure: durations only. meshd/base/wakeful_loop.py has the same (docs/decisions/0066).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace mesh {

class rhythm {
public:
    using duration = std::chrono::nanoseconds;

    static constexpr duration FOREVER = duration::max();
    // Messages that belong together come within this: before a processor sleeps so deeply that waking it takes long
    static constexpr duration SHORT = std::chrono::microseconds(100);
    // A timer is late by less than this
    static constexpr duration LEAD = std::chrono::microseconds(100);

    // Learns from a wait that is over
    void passed(duration waited) {
        if (waited < SHORT) {
            return;
        }
        const duration before = expected.load();
        const duration wrong = waited > before ? waited - before : before - waited;
        if (before == duration::zero()) {
            begin(waited);
        } else if (wrong <= before / 4) {
            expected = before + (waited - before) / 8;
            deviation = deviation.load() + (wrong - deviation.load()) / 4;
            longer = std::max(0, longer.load() - 1);
            shorter = 0;
        } else if (waited > before) {
            longer = longer + 2;
            if (longer > 2) { // nearly every other one: those that were expected are only between them
                begin(waited);
            }
        } else {
            shorter = shorter + 1;
            if (shorter == MANY) {
                begin(waited);
            }
        }
    }

    // What to do when the next wait has taken so long. 0: poll. FOREVER: sleep until woken. Otherwise sleep for so long
    // at most: half of what is left, so that a processor that wakes up late is in time for the rest
    duration rest(duration waited) const {
        const duration usual = expected.load();
        const duration spread = 2 * deviation.load() + LEAD;
        const bool is_even = usual > duration::zero() && spread <= std::max(3 * LEAD, usual / 8);
        if (!is_even || waited >= usual + spread) {
            return FOREVER;
        }
        return waited + LEAD < usual - spread ? (usual - spread - waited) / 2 : duration::zero();
    }

private:
    static constexpr int MANY = 8;

    void begin(duration waited) {
        expected = waited;
        deviation = waited / 16;
        longer = shorter = 0;
    }

    // of several threads, which wait for the same in turns; zero: nothing is known
    std::atomic<duration> expected{ duration::zero() };
    std::atomic<duration> deviation{ duration::zero() };
    std::atomic<int> longer{ 0 };  // waits that were much longer, lately
    std::atomic<int> shorter{ 0 }; // much shorter, one after the other
};

} // namespace mesh
