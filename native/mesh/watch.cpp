#include "watch.h"

#include <chrono>
#include <thread>

namespace mesh {

void watch::add(connection & worker, uint32_t place) {
    std::lock_guard<std::mutex> lock(mutex);
    workers.push_back({ &worker, place, 0, 0 });
}

void watch::start() {
    std::lock_guard<std::mutex> lock(mutex);
    if (started) {
        return;
    }
    started = true;
    std::thread([this] {
        for (;;) {
            std::this_thread::sleep_for(std::chrono::seconds(1));
            tick();
        }
    }).detach();
}

void watch::tick() {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto & one : workers) {
        const std::string why = complaint(one);
        if (!why.empty()) {
            one.worker->lose(why);
        }
    }
}

// Has done all that it was asked: what does not come from it does not come because of it
bool watch::is_idle(uint32_t place) const {
    for (const auto & one : workers) {
        if (one.place == place) {
            const progress_body report = one.worker->report();
            return report.request == 0 && report.done == one.worker->last_request();
        }
    }
    return true;
}

std::string watch::complaint(watched & one) const {
    const uint64_t received = one.worker->received();
    one.silent = received == one.received ? one.silent + 1 : 0;
    one.received = received;
    if (one.silent > HUNG_SECONDS) {
        return "it has said nothing for " + std::to_string(one.silent) + " s";
    }
    const progress_body report = one.worker->report();
    if (report.request == 0 || report.seconds < HUNG_SECONDS) {
        return "";
    }
    const std::string time = std::to_string(report.seconds) + " s";
    if (report.waits == 0) {
        return "it has not moved on for " + time + ", behind node " + std::to_string(report.node) + " of " +
               std::to_string(report.nodes);
    }
    // a neighbour that still works, or waits itself, may be slow; if it hangs it says so
    return is_idle(report.waits - 1)
               ? "it has waited for neighbour " + std::to_string(report.waits - 1) + " for " + time
               : "";
}

} // namespace mesh
