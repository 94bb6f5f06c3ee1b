// One head, served: a thread reads ahead, this one computes, a third one writes answers.
#pragma once

#include "channel.h"
#include "executor.h"
#include "queue.h"

namespace mesh {

class session {
public:
    session(channel & head, const std::vector<lent_device> & devices, const local_weights & files, neighbours & others);

    // Until the head is done. Throws bad_message for what it may not send, which it has been told then, and lost
    void run();

private:
    struct request {
        wire_header header;
        std::vector<uint8_t> body;
    };
    struct reply {
        message number;
        uint64_t id;
        std::vector<uint8_t> body;
    };

    void read_requests();
    void write_replies();
    void work();
    void answer(message number, uint64_t id, std::vector<uint8_t> body);

    channel & head;
    neighbours & others;
    executor work_off;
    queue<request> requests;
    queue<reply> replies;
    std::string broken; // why reading ended, if not by the head
};

} // namespace mesh
