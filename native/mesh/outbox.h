// Messages on their way to who may read them late or never. What is not read at once is kept, bounded in bytes, and
// sent by a thread of its own, so that nobody who has something for others waits with it.
#pragma once

#include "channel.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <thread>

namespace mesh {

class outbox {
public:
    // `room`: bytes that are kept, and one message more of each thread. `broken` is called, by the thread of its own,
    // when nothing more can be sent
    outbox(channel & to, size_t room, std::function<void(const std::string &)> broken) :
        to(to), room(room), broken(std::move(broken)) {}
    // The channel has been shut, or all is sent
    ~outbox();
    outbox(const outbox &) = delete;
    outbox & operator=(const outbox &) = delete;

    // Waits until there is room. false: it has ended
    bool wait_for_room();

    // These neither wait nor ask for room. What may wait is kept, if it is short, and goes out together with what comes
    // next; of the second one, `more` is not copied
    void put(message number, uint64_t id, const blob & body, const void * more, size_t more_size, bool may_wait);
    void put(message number, uint64_t id, const blob & body, blob more);

    // What waits goes out
    void flush();

    // Waits until all is sent, or it has ended
    void finish();
    // Nothing more is sent
    void end();

    // Bytes so far; from any thread
    uint64_t sent() const { return left; }
    // Whether the other side does not read what it has been sent
    bool is_full();

private:
    struct piece {
        blob data;
        size_t at; // sent so far
    };

    size_t send_waiting(const void * more, size_t more_size);
    void send_or_copy(const void * more, size_t more_size);
    void keep(blob data, size_t at);
    void send_kept();

    channel & to;
    const size_t room;
    const std::function<void(const std::string &)> broken;
    std::mutex mutex;
    std::condition_variable changed;
    writer waiting; // messages that go out with the next one
    std::deque<piece> kept;
    size_t held = 0; // bytes of those
    std::thread sending;
    bool ended = false;
    std::atomic<uint64_t> left{ 0 };
};

} // namespace mesh
