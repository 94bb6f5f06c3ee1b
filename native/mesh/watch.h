// The head's watch over its workers: one that says nothing any more, or does not move on, is lost.
#pragma once

#include "connection.h"

namespace mesh {

class watch {
public:
    // `grace`: seconds for which the path to a worker, or between two of them, may bring nothing: the parent process
    // waits as long for it to come back, and says what is lost
    explicit watch(uint32_t grace = 0) : grace(grace) {}

    // What the parent says in GGML_MESH_GRACE; without it 0. Throws std::runtime_error
    static uint32_t grace_of_parent();

    // The worker at this place of the head's list, which has said WELCOME
    void add(connection & worker, uint32_t place);

    // A second has passed. Counted, not measured: a head that was itself suspended accuses nobody
    void tick();

    // Ticks from now on, for as long as the process is
    void start();

private:
    struct watched {
        connection * worker;
        uint32_t place;
        uint64_t received; // bytes
        uint32_t silent;   // seconds
    };
    std::string complaint(watched & one) const;
    std::string own_words(const watched & one, const progress_body & report) const;
    connection * neighbour(const watched & one, uint32_t place) const;

    const uint32_t grace;
    std::mutex mutex;
    std::vector<watched> workers;
    bool started = false;
};

} // namespace mesh
