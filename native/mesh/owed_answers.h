// What a worker owes its head, and for how long: the head's own clock, which believes nothing that the worker says of
// itself (docs/decisions/0034). Counted in ticks, like all of the watch.
#pragma once

#include "protocol.h"

#include <atomic>
#include <deque>

namespace mesh {

// What may last how long; seconds unless it says otherwise
constexpr double LEAST_SECONDS = 60;     // an answer, or a graph like those before
constexpr double MOST_SECONDS = 600;     // anything before the first graph is done, and a graph with more inputs
constexpr double TIMES_LONGEST = 2;      // as long as the longest graph before
constexpr double TIMES_LARGER = 4;       // as long for each byte of inputs as the slowest graph before
constexpr double PASSING_RATE = 1 << 14; // bytes a second, either way: what passes faster is not waited for
constexpr double READING_RATE = 1 << 20; // bytes a second that a worker reads of its own files

class owed_answers {
public:
    // A request; they come in the order of their ids. `bytes`: inputs that are written, or weights that are loaded
    void add(message number, uint64_t id, uint64_t bytes);
    // A TAKE: what comes behind it is not counted until that other worker has settled this PUSH of its own
    void add_take(uint64_t id, uint64_t bytes, const std::atomic<uint64_t> & pusher, uint64_t push);
    // This PUSH, added before, may have to wait until that other worker is at this TAKE of its own
    void add_taker(uint64_t push, const std::atomic<uint64_t> & taker, uint64_t take);

    // A SUM, which somebody else waits for and which waits for them; add_member() says for whom. `bytes`: that come
    void add_sum(uint64_t id, uint64_t bytes);
    // This SUM, added before, has to wait until that other worker is at this SUM of its own
    void add_member(uint64_t id, const std::atomic<uint64_t> & member, uint64_t sum);

    // All requests up to this one are done
    void settle(uint64_t id);

    // As far as it can be: the first TAKE that another worker has not pushed for, or what it owes first; UINT64_MAX:
    // there is neither
    uint64_t at() const;
    // Nobody waits for this worker, and it waits for nobody
    bool is_empty() const { return at() == UINT64_MAX; }

    // A second has passed, and so many bytes of requests and answers with it. `unsent`: the worker does not read all
    // of its requests. `grace`: seconds more that it may take, for its path. Why it is not to be waited for any more,
    // or ""
    std::string tick(uint64_t passed, bool unsent, uint32_t grace = 0);

private:
    // Another worker has to get as far as that first, and so on: as the head has each pair in one order, one of them
    // waits for nobody
    struct wait {
        uint64_t id; // of the TAKE or PUSH here
        const std::atomic<uint64_t> * other;
        uint64_t least;
        bool is_over() const { return other->load() >= least; }
    };
    // Requests up to one that somebody waits for
    struct debt {
        uint64_t id = 0;
        bool graph = false;
        bool load = false;
        uint64_t inputs = 0;
        uint64_t loaded = 0;
        uint64_t taken_bytes = 0; // of inputs
        std::vector<wait> waits;
    };
    bool waits_for_others() const;
    double limit() const;

    debt next; // nobody waits for it yet
    std::deque<debt> all;
    double waited = 0;    // for the first one, less what has passed meanwhile
    double age = 0;       // of the first one, without the time in which it had to wait for others
    double longest = 0;   // of graphs that were done: seconds,
    double slowest = 0;   // seconds for each byte of inputs,
    uint64_t largest = 0; // and bytes of inputs
    bool computed = false;
};

} // namespace mesh
