// What a worker is doing, for those who watch it: written by the threads that do it, read by another one.
#pragma once

#include "protocol.h"

#include <atomic>

namespace mesh {

struct progress {
    std::atomic<uint64_t> done{ 0 };    // id of the last request that is done; 0: not even HELLO
    std::atomic<uint64_t> request{ 0 }; // id of the one that is worked on; 0: none
    std::atomic<uint64_t> flying{ 0 };  // id of the oldest that a device has been given and has not done; 0: none
    std::atomic<uint32_t> node{ 0 };    // of its graph: as many are done
    std::atomic<uint32_t> nodes{ 0 };   // of so many
    std::atomic<uint32_t> waits{ 0 };   // 1 + the neighbour that it waits for; 0: for none
    std::atomic<uint32_t> pushes{ 0 };  // likewise, to take what it was pushed
    std::atomic<uint64_t> steps{ 0 };   // grows with whatever moves on
    std::atomic<bool> cancelled{ false };
};

// Counts for how long nothing has moved on.
class progress_watch {
public:
    // `by_cpu`: all devices are CPUs, so that work takes time of this process
    explicit progress_watch(const progress & doing, bool by_cpu) : doing(doing), by_cpu(by_cpu) {}

    // A second has passed; `received`: bytes from the neighbour that it waits for. Counted, not measured: a worker that
    // was itself suspended has not been stuck
    progress_body tick(uint64_t received);

    // What was cancelled has not ended for so long, whatever moves on: a single node may take hours, and a CPU's time
    // is what its owner wants back
    bool is_stuck() const { return cancelled >= HUNG_SECONDS; }

private:
    bool moved(uint64_t received);

    const progress & doing;
    const bool by_cpu;
    uint64_t last_request = 0;
    uint64_t last_steps = 0;
    uint64_t last_received = 0;
    double last_cpu = 0;
    uint32_t seconds = 0;
    uint32_t cancelled = 0; // seconds since then
};

} // namespace mesh
