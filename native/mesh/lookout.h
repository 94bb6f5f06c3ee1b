// Who waits for what comes soon, and looks for it instead of sleeping: to wake a thread on a processor that sleeps
// takes as long as a hidden state is under way (docs/decisions/0040).
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace mesh {

class lookout {
public:
    using clock = std::chrono::steady_clock;

    // For so long anybody in this process looks: milliseconds from GGML_MESH_LOOKOUT. Until this is called, and without
    // the variable: not at all. Throws std::runtime_error
    static void allow();

    // Looks until `ready` says yes, if what this one waited for last came in time. Who calls may have to sleep still.
    // When it began, for came()
    template <class Ready> clock::time_point look(const Ready & ready) {
        const auto began = clock::now();
        const std::chrono::milliseconds most = longest;
        while (soon && !ready()) {
            if (clock::now() - began >= most) {
                soon = false;
            } else {
                std::this_thread::yield(); // whoever has something to do goes first
            }
        }
        return began;
    }

    // What was waited for is there
    void came(clock::time_point began) { soon = clock::now() - began < longest.load(); }
    // The next one is not expected soon
    void rest() { soon = false; }

private:
    static inline std::atomic<std::chrono::milliseconds> longest{ std::chrono::milliseconds(0) };
    std::atomic<bool> soon{ false };
};

} // namespace mesh
