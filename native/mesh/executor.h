// The requests of one head, worked off one by one.
#pragma once

#include "graphs.h"
#include "local_weights.h"
#include "neighbours.h"

#include <functional>

namespace mesh {

class executor {
public:
    typedef std::function<void(message number, uint64_t id, std::vector<uint8_t> body)> answer_function;

    executor(const std::vector<lent_device> & devices, const local_weights & files, exchange & others,
        answer_function answer);
    ~executor();
    executor(const executor &) = delete;
    executor & operator=(const executor &) = delete;

    // A message whose length has been checked. Throws bad_message for what a head may not ask, and std::runtime_error
    // where a device failed: nothing more may be asked then
    void handle(const wire_header & header, const std::vector<uint8_t> & bytes);

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
    void work_off(const wire_header & header, const std::vector<uint8_t> & bytes);
    void hello(uint64_t id, reader & in);
    void fill(const fill_body & body);
    void write(reader & in);
    void read(uint64_t id, const read_body & body);
    void copy(const copy_body & body);
    void graph(reader & in);
    void compute(const stored_graph & graph, uint32_t device);
    void load(uint64_t id, reader & in);
    void push(const push_body & body);
    void take(const take_body & body);

    const std::vector<lent_device> & devices;
    const local_weights & files;
    exchange & others;
    const answer_function answer;
    buffers memory;
    std::vector<graph_shelf> shelves;
    bool greeted = false;
};

} // namespace mesh
