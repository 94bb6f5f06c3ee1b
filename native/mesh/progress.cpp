#include "progress.h"

#include "large_pages.h"

#include <algorithm>
#include <ctime>

namespace mesh {

// since something moved on last; who only watches takes much less, and a starved process more
static constexpr double WORK_SECONDS = 0.1;

static double cpu_seconds() {
    timespec used = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9 - large_page_seconds();
}

bool progress_watch::moved(uint64_t received) {
    const uint64_t flying = doing.flying;
    const uint64_t request = flying != 0 ? flying : doing.request.load();
    const uint64_t steps = doing.steps;
    const double cpu = cpu_seconds();
    const bool has = request != last_request || steps != last_steps || received != last_received ||
                     (by_cpu && cpu - last_cpu > WORK_SECONDS);
    if (has) {
        last_request = request;
        last_steps = steps;
        last_received = received;
        last_cpu = cpu;
    }
    return has;
}

progress_body progress_watch::tick(uint64_t received) {
    seconds = moved(received) || last_request == 0 ? 0 : seconds + 1;
    cancelled = doing.cancelled ? cancelled + 1 : 0;
    progress_body body;
    // in this order: what has been given to a device meanwhile is not done, and what was before has been answered
    const uint64_t done = doing.done;
    const uint64_t flying = doing.flying;
    body.done = flying != 0 ? std::min(done, flying - 1) : done;
    body.request = last_request;
    body.node = doing.node;
    body.nodes = doing.nodes;
    body.seconds = seconds;
    // who waits for what a device has not done waits for the device
    body.waits = doing.pushes != 0 ? doing.pushes.load() : flying != 0 ? 0 : doing.waits.load();
    return body;
}

} // namespace mesh
