// One head, served: a thread reads ahead, this one computes, a third one writes answers.
#pragma once

#include "channel.h"
#include "graphs.h"
#include "local_weights.h"
#include "queue.h"

namespace mesh {

class session {
public:
    session(channel & head, const std::vector<lent_device> & devices, const local_weights & files);

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
    void handle(const request & one);
    void answer(message number, uint64_t id, std::vector<uint8_t> body);
    template <class Body> void answer_body(uint64_t id, const Body & body) {
        writer out;
        body.put(out);
        answer(Body::number, id, std::move(out.data));
    }

    void hello(const request & one);
    void fill(const fill_body & body);
    void write(reader & in);
    void read(uint64_t id, const read_body & body);
    void copy(const copy_body & body);
    void graph(reader & in);
    void compute(const stored_graph & graph, uint32_t device);
    void load(uint64_t id, reader & in);

    channel & head;
    const std::vector<lent_device> & devices;
    const local_weights & files;
    buffers memory;
    std::vector<graph_shelf> shelves;
    queue<request> requests;
    queue<reply> replies;
    std::string broken; // why reading ended, if not by the head
    bool greeted = false;
};

} // namespace mesh
