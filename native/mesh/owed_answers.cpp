#include "owed_answers.h"

#include <cmath>

namespace mesh {

// What others wait for: an answer, a result, a tensor
static bool is_awaited(message number) {
    switch (number) {
    case message::free:
    case message::fill:
    case message::write:
    case message::copy:
    case message::take:
    case message::sum:
        return false;
    default:
        return true;
    }
}

void owed_answers::add(message number, uint64_t id, uint64_t bytes) {
    next.graph = number == message::graph || number == message::compute;
    next.load = number == message::load || number == message::load_parts;
    (next.load ? next.loaded : next.inputs) += bytes;
    if (is_awaited(number)) {
        next.id = id;
        all.push_back(std::move(next));
        next = debt();
    }
}

void owed_answers::add_take(uint64_t id, uint64_t bytes, const std::atomic<uint64_t> & pusher, uint64_t push) {
    next.waits.push_back({ id, &pusher, push });
    next.taken_bytes += bytes;
    add(message::take, id, bytes);
}

void owed_answers::add_taker(uint64_t push, const std::atomic<uint64_t> & taker, uint64_t take) {
    for (auto one = all.rbegin(); one != all.rend() && one->id >= push; ++one) {
        if (one->id == push) {
            one->waits.push_back({ push, &taker, take });
        }
    }
}

void owed_answers::add_sum(uint64_t id, uint64_t bytes) {
    next.taken_bytes += bytes;
    add(message::sum, id, bytes);
}

void owed_answers::add_member(uint64_t id, const std::atomic<uint64_t> & member, uint64_t sum) {
    debt * found = &next; // of the first answer from this SUM on
    for (auto one = all.rbegin(); one != all.rend() && one->id >= id; ++one) {
        found = &*one;
    }
    found->waits.push_back({ id, &member, sum });
}

uint64_t owed_answers::at() const {
    const debt & first = all.empty() ? next : all.front();
    for (const auto & one : first.waits) {
        if (one.id != first.id && !one.is_over()) {
            return one.id;
        }
    }
    return all.empty() ? UINT64_MAX : first.id;
}

void owed_answers::settle(uint64_t id) {
    uint64_t inputs = 0; // of all that was done in this time
    bool graph = false;
    const double took = age;
    while (!all.empty() && all.front().id <= id) {
        const debt & done = all.front();
        inputs += done.inputs;
        if (done.graph) {
            graph = true;
            largest = std::max(largest, done.inputs);
        }
        all.pop_front();
        waited = age = 0;
    }
    if (graph) {
        computed = true;
        longest = std::max(longest, took);
        slowest = inputs > 0 ? std::max(slowest, took / static_cast<double>(inputs)) : slowest;
    }
}

bool owed_answers::waits_for_others() const {
    return !all.empty() && std::any_of(all.front().waits.begin(), all.front().waits.end(),
                               [](const wait & one) { return !one.is_over(); });
}

double owed_answers::limit() const {
    const double least = computed ? LEAST_SECONDS : MOST_SECONDS;
    if (all.empty()) {
        return least;
    }
    const debt & first = all.front();
    const auto inputs = static_cast<double>(first.inputs);
    // what another worker has pushed may still be on its way
    const double way = static_cast<double>(first.taken_bytes) / PASSING_RATE;
    if (first.load) {
        return MOST_SECONDS + static_cast<double>(first.loaded) / READING_RATE;
    }
    if (!first.graph) {
        return least + way;
    }
    if (first.inputs <= largest) {
        return std::max(least, TIMES_LONGEST * longest) + way;
    }
    return std::max(MOST_SECONDS, TIMES_LARGER * slowest * inputs) + way;
}

std::string owed_answers::tick(uint64_t passed, bool unsent, uint32_t grace) {
    if (all.empty() && !unsent) {
        waited = age = 0;
        return "";
    }
    if (!waits_for_others()) {
        waited++;
        age++;
    }
    waited = std::max(0.0, waited - static_cast<double>(passed) / PASSING_RATE);
    if (waited <= limit() + grace) {
        return "";
    }
    return std::string(all.empty() ? "it does not read" : "it does not answer") + ": requests have waited for " +
           std::to_string(std::lround(waited)) + " s";
}

} // namespace mesh
