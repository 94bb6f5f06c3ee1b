#include "watch.h"

#include "variable.h"

#include <chrono>
#include <thread>

namespace mesh {

uint32_t watch::grace_of_parent() {
    return number_of_variable("GGML_MESH_GRACE", "seconds", 1000000);
}

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

// That it may wait for; nullptr: there is none, and it says something untrue
connection * watch::neighbour(const watched & one, uint32_t place) const {
    for (const auto & other : workers) {
        if (other.place == place && place != one.place) {
            return other.worker;
        }
    }
    return nullptr;
}

// What the worker says against itself
std::string watch::own_words(const watched & one, const progress_body & report) const {
    const std::string waits = std::to_string(report.waits - 1);
    connection * other = report.waits == 0 ? nullptr : neighbour(one, report.waits - 1);
    if (report.waits != 0 && other == nullptr) {
        return "it says that it waits for neighbour " + waits + ", which it does not have";
    }
    // what a neighbour sends has a path of its own
    if (report.request == 0 || report.seconds < HUNG_SECONDS + (other == nullptr ? 0 : grace)) {
        return "";
    }
    const std::string time = std::to_string(report.seconds) + " s";
    if (other == nullptr) {
        return "it has not moved on for " + time + ", behind node " + std::to_string(report.node) + " of " +
               std::to_string(report.nodes);
    }
    // a neighbour that still works, or waits itself, may be slow; if it hangs it says so, or is found out
    return other->is_idle() ? "it has waited for neighbour " + waits + " for " + time : "";
}

std::string watch::complaint(watched & one) const {
    const uint64_t received = one.worker->received();
    one.silent = received == one.received ? one.silent + 1 : 0;
    one.received = received;
    const std::string late = one.worker->tick(grace);
    if (one.silent > HUNG_SECONDS + grace) {
        return "it has said nothing for " + std::to_string(one.silent) + " s";
    }
    const progress_body report = one.worker->report();
    const std::string said = own_words(one, report);
    if (!said.empty() || late.empty() || report.waits == 0) {
        return said.empty() ? late : said;
    }
    return late + "; it says that it waits for neighbour " + std::to_string(report.waits - 1);
}

} // namespace mesh
