#include "progress.h"

#include <ctime>

namespace mesh {

// since something moved on last; who only watches takes much less, and a starved process more
static constexpr double WORK_SECONDS = 0.1;

static double cpu_seconds() {
    timespec used = {};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
}

bool progress_watch::moved(uint64_t received) {
    const uint64_t request = doing.request;
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
    cancelled = doing.cancelled && last_request != 0 ? cancelled + 1 : 0;
    progress_body body;
    body.done = doing.done;
    body.request = last_request;
    body.node = doing.node;
    body.nodes = doing.nodes;
    body.seconds = seconds;
    body.waits = doing.waits;
    return body;
}

} // namespace mesh
