// The requests of one head, worked off one by one.
#pragma once

#include "flights.h"
#include "graphs.h"
#include "local_weights.h"
#include "neighbours.h"
#include "recent_writes.h"

#include <functional>

namespace mesh {

class executor {
public:
    typedef std::function<void(message number, uint64_t id, blob body)> answer_function;

    // `woken`: as flights
    executor(
        const std::vector<lent_device> & devices, const local_weights & files, exchange & others,
        answer_function answer, std::function<void()> woken = [] {});
    ~executor();
    executor(const executor &) = delete;
    executor & operator=(const executor &) = delete;

    // A message whose length has been checked. Throws bad_message for what a head may not ask, and std::runtime_error
    // where a device failed: nothing more may be asked then
    void handle(const wire_header & header, blob bytes);

    // Until devices have done all that they were given, and it has been answered. settle() throws what has failed
    void wait() { under_way.wait(); }
    void settle();

    // What it is doing, for other threads
    progress doing;

    const buffers & held() const { return memory; }

private:
    template <class Body> void answer_body(uint64_t id, const Body & body) {
        writer out;
        body.put(out);
        answer(Body::number, id, std::move(out.data));
    }

    void watch_nodes(progress * told);
    void work_off(const wire_header & header, blob & bytes);
    void hello(uint64_t id, reader & in);
    void free(const free_body & body);
    void fill(const fill_body & body);
    void write(uint64_t id, blob & bytes);
    void put(uint64_t id, const place & where, const uint8_t * data, size_t size, blob & whole);
    std::shared_ptr<blob> get(const place & where, uint32_t size);
    void read(uint64_t id, const read_body & body);
    void copy(const copy_body & body);
    void graph(uint64_t id, reader & in);
    void compute(uint64_t id, const compute_body & body);
    void compute(uint64_t id, const stored_graph & graph, uint32_t device);
    void load(uint64_t id, reader & in);
    void push(uint64_t id, const push_body & body);
    void take(uint64_t id, const take_body & body);
    void sum(uint64_t id, const sum_body & body);
    void load_parts(uint64_t id, reader & in);
    wanted_part take_part(reader & in);

    const std::vector<lent_device> & devices;
    const local_weights & files;
    exchange & others;
    const answer_function answer;
    buffers memory;
    std::vector<graph_shelf> shelves;
    recent_writes recent; // on devices whose memory this process cannot read
    flights under_way;    // ends before what it uses
    bool greeted = false;
};

} // namespace mesh
