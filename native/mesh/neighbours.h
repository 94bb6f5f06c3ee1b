// Connections with other workers of the same head: what is pushed to them, and what they push. When to push is up to
// the head's client (client_copies.cpp).
#pragma once

#include "channel.h"
#include "outbox.h"
#include "queue.h"
#include "sealing.h"

#include <atomic>
#include <map>
#include <memory>
#include <thread>

namespace mesh {

// A worker by its place in the head's list, and the socket to it. `is_direct`: the mesh-server of that worker has the
// other end; the parent sees nothing of what passes, and gets a report of each message. `keys`: it is on another
// machine, and what passes is sealed
struct neighbour_socket {
    uint32_t number;
    int socket;
    bool is_direct = false;
    std::shared_ptr<const sealing_keys> keys = nullptr;
};

// What an executor needs of them
class exchange {
public:
    virtual ~exchange() = default;

    // Which neighbours there are. Throws interrupted
    virtual std::vector<uint32_t> numbers() const = 0;

    // These throw bad_message for a neighbour that there is not, and std::runtime_error, with its number, for one that
    // is lost or does not push what the head says
    virtual void push(uint32_t number, uint64_t token, blob data) = 0;
    // Waits for it
    virtual blob take(uint32_t number, uint64_t token, uint32_t size) = 0;

    // The same for a piece of a sum, of any size that one may have
    virtual void push_summand(uint32_t number, uint64_t token, const blob & data) = 0;
    virtual blob take_summand(uint32_t number, uint64_t token) = 0;
};

// The session ends; nobody waits for what was asked any more
struct interrupted : std::runtime_error {
    interrupted() : std::runtime_error("the head is done") {}
};

class neighbours : public exchange {
public:
    // Takes over the sockets. `more`: others are added until complete() is called
    explicit neighbours(const std::vector<neighbour_socket> & sockets, bool more = false);
    ~neighbours() override;
    neighbours(const neighbours &) = delete;
    neighbours & operator=(const neighbours &) = delete;

    // Takes over the socket, whatever happens. From any thread, as complete(). Throws std::runtime_error for a number
    // that is there, or cannot be
    void add(const neighbour_socket & one);
    void complete();

    // Bytes from this one so far, if there is such a neighbour; from any thread
    uint64_t received(uint32_t number) const;
    // These wait until they are complete
    std::vector<uint32_t> numbers() const override;
    void push(uint32_t number, uint64_t token, blob data) override;
    blob take(uint32_t number, uint64_t token, uint32_t size) override;
    void push_summand(uint32_t number, uint64_t token, const blob & data) override;
    blob take_summand(uint32_t number, uint64_t token) override;

    // From any thread: whoever waits in numbers(), push() or take() is interrupted
    void end();

private:
    struct piece {
        uint64_t token;
        bool is_summand;
        blob data;
    };
    // Its threads read ahead and write behind, so that two workers that push to each other never wait for each other
    struct neighbour {
        neighbour(const neighbour_socket & one, size_t room);
        void read();
        bool read_what_is_there(size_t most);
        bool keep(const wire_header & header);
        void look_for_next(std::chrono::microseconds most);
        void tell_came();
        void tell_pushed(size_t body);

        neighbour_socket self;
        channel link;
        std::mutex reading_turn; // of its thread, and of whoever waits for what comes next
        bool is_over = false;    // nothing more is read; in that turn
        queue<piece> coming;
        lookout sums;
        outbox going;
        std::string why = "it ended"; // why nothing more comes; set before the end of `coming`
        std::mutex telling;           // pushes may come from two threads
        uint64_t pushed = 0;          // messages so far, and their bytes
        uint64_t pushed_bytes = 0;
        uint64_t came = 0;
        std::thread reading;
    };
    blob take_next(uint32_t number, uint64_t token, bool is_summand);
    void await_all() const;
    neighbour & at(uint32_t number) const;
    [[noreturn]] void fail(uint32_t number, const std::string & why) const;

    mutable std::mutex mutex;
    mutable std::condition_variable changed;
    std::map<uint32_t, neighbour_socket> unstarted;
    bool is_complete = false;
    std::map<uint32_t, std::unique_ptr<neighbour>> all; // as it is, once they are complete
    std::atomic<bool> ended{ false };
};

} // namespace mesh
