// Requests on their way to a worker, which may read them late or never. What it does not read at once is kept, bounded
// in bytes, and sent by a thread of its own, so that nobody who has something for other workers waits with it.
#pragma once

#include "channel.h"

#include <condition_variable>
#include <deque>
#include <functional>

namespace mesh {

constexpr size_t OUTBOX_BYTES = 2 * PIECE_BYTES; // and one message more of each thread

class outbox {
public:
    // For as long as the process is. `broken` is called, by the thread, when nothing more can be sent
    outbox(channel & to, std::function<void(const std::string &)> broken) : to(to), broken(std::move(broken)) {}

    // Waits until there is room. false: it has ended
    bool wait_for_room();

    // Does not wait, and does not ask for room. What may wait is kept, if it is short, and goes out together with what
    // comes next
    void put(message number, uint64_t id, const blob & body, const void * more, size_t more_size, bool may_wait);

    // What waits goes out
    void flush();

    // Nothing more is sent
    void end();

    // Bytes so far; from any thread
    uint64_t sent() const { return left; }
    // Whether the worker does not read what it has been sent
    bool is_full();

private:
    void send_waiting(const void * more, size_t more_size);
    void keep(const uint8_t * data, size_t size);
    void send_kept();

    channel & to;
    const std::function<void(const std::string &)> broken;
    std::mutex mutex;
    std::condition_variable changed;
    writer waiting; // messages that go out with the next one
    std::deque<blob> kept;
    size_t held = 0; // bytes of those
    bool started = false;
    bool ended = false;
    std::atomic<uint64_t> left{ 0 };
};

} // namespace mesh
