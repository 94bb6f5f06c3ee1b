// The head's end of a connection to one worker: requests from any thread, answers taken by a thread of its own.
//
// While a model is loaded a loss makes every call fail. After that it ends the process with LOST_EXIT, before anybody
// can take missing bytes for a result (docs/decisions/0034).
#pragma once

#include "channel.h"

#include <chrono>
#include <condition_variable>
#include <unordered_map>

namespace mesh {

constexpr int LOST_EXIT = 86;

class connection {
public:
    // Takes over the socket. Connections are never destroyed: they end with the process
    connection(int socket, uint32_t place, std::string name);

    // Greets the worker: what it has, or false where it is lost, refuses, or says nothing for so long: its program may
    // be starting
    bool greet(const std::string & release, std::vector<uint8_t> & welcome,
        std::chrono::milliseconds patience = std::chrono::seconds(30));

    // From now on a loss ends the process
    void serve();

    // A request without an answer. false: the worker is lost
    bool send_bytes(message number, const std::vector<uint8_t> & body, const void * more = nullptr, size_t size = 0);
    template <class Body> bool send(const Body & body, const void * more = nullptr, size_t size = 0) {
        writer out;
        body.put(out);
        return send_bytes(Body::number, out.data, more, size);
    }

    // A request whose answer is put into target, which has to live until wait() says that it has come. 0: lost
    uint64_t ask(message number, const std::vector<uint8_t> & body, message wanted, void * target, size_t size);
    template <class Body> uint64_t ask(const Body & body, message wanted, void * target, size_t size) {
        writer out;
        body.put(out);
        return ask(Body::number, out.data, wanted, target, size);
    }

    // Waits for that answer, or for all. false: the worker is lost
    bool wait(uint64_t id);
    bool wait_all();

    // What the watch asks: the last PROGRESS, bytes that came, the id of the last request
    progress_body report();
    uint64_t received() const { return worker.received(); }
    uint64_t last_request();
    // The worker is not to be waited for any more
    void lose(const std::string & why);

    // Held by whoever sends what must not be parted: a graph, and the note that it is kept there
    std::mutex order;

    const std::string name;

private:
    struct pending {
        message wanted;
        void * target;
        size_t size;
        std::vector<uint8_t> * whole; // in place of target: all of it, whatever its size
    };

    bool write(message number, uint64_t id, const std::vector<uint8_t> & body, const void * more, size_t size);
    uint64_t expect(const pending & answer);
    void receive();
    void receive_one(const wire_header & header);
    channel worker;
    const uint32_t place; // in the head's list of workers
    std::mutex mutex;
    std::condition_variable changed;
    std::unordered_map<uint64_t, pending> answers; // that have not come
    uint64_t last_id = 0;
    progress_body last_report;
    bool serving = false;
    bool gone = false;
};

} // namespace mesh
