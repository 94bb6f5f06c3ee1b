// One head, served: a thread reads ahead, this one computes, and a third one says how far it is.
#pragma once

#include "channel.h"
#include "executor.h"
#include "outbox.h"
#include "queue.h"

#include <chrono>
#include <exception>

namespace mesh {

class session {
public:
    // `abandon` is called where the head is gone and a device does not come back; `second` is how long one takes
    session(channel & head, const std::vector<lent_device> & devices, const local_weights & files, neighbours & others,
        std::function<void()> abandon, std::chrono::milliseconds second = std::chrono::seconds(1));

    // Until the head is done. Throws lost where it has gone in the middle of something, bad_message for what it may not
    // send, and others for what failed here; of those it has been told then
    void run();

private:
    struct request {
        wire_header header;
        blob body;
    };

    void read_requests();
    void end_replies();
    void work();
    void say_progress();
    void answer(message number, uint64_t id, blob body);

    channel & head;
    neighbours & others;
    executor work_off;
    queue<request> requests;
    outbox replies;
    std::exception_ptr broken; // why reading ended, if the head was not done
    const std::function<void()> abandon;
    const std::chrono::milliseconds second;
    const bool by_cpu;
    std::mutex mutex;
    std::condition_variable changed;
    bool ended = false;
};

} // namespace mesh
