// Who waits for what comes soon, and looks for it instead of sleeping: to wake a thread on a processor that sleeps
// takes as long as a hidden state is under way (docs/decisions/0040).
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace mesh {

// How often another thread has taken the processor from this one, or been given it; 0 where that is not told
long times_displaced();

class lookout {
public:
    using clock = std::chrono::steady_clock;

    // For so long anybody in this process looks: milliseconds from GGML_MESH_LOOKOUT. Until this is called, and without
    // the variable: not at all. Throws std::runtime_error
    static void allow();

    // Looks until `ready` says yes, if what this one waited for last came in time. Who calls may have to sleep still.
    // When it began, for came()
    template <class Ready, class Displaced = long (*)()>
    clock::time_point look(
        const Ready & ready, const Displaced & displaced = times_displaced, clock::time_point began = clock::now()) {
        if (soon && began.time_since_epoch() >= rests_until.load()) {
            const long before = displaced();
            while (!ready()) {
                if (clock::now() - began >= longest.load()) {
                    soon = false;
                    return began;
                }
                std::this_thread::yield(); // whoever has something to do goes first
                if (displaced() != before) {
                    rests_until = began.time_since_epoch() + rest_next.load();
                    rest_next = std::min(2 * rest_next.load(), MOST_REST);
                    return began;
                }
            }
            rest_next = REST;
        }
        return began;
    }

    // What was waited for is there
    void came(clock::time_point began) { soon = clock::now() - began < longest.load(); }
    // The next one is not expected soon
    void rest() { soon = false; }

    // For so long nobody looks after another thread needed the processor, and twice as long each time
    static constexpr std::chrono::milliseconds REST{ 20 };
    static constexpr std::chrono::milliseconds MOST_REST{ 5000 };

private:
    static inline std::atomic<std::chrono::milliseconds> longest{ std::chrono::milliseconds(0) };
    std::atomic<bool> soon{ false };
    std::atomic<clock::duration> rests_until{ clock::duration::zero() };
    std::atomic<std::chrono::milliseconds> rest_next{ REST };
};

} // namespace mesh
