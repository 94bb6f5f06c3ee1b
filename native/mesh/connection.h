// The head's end of a connection to one worker: requests from any thread, answers taken by a thread of its own. What
// the worker says is believed as far as it cannot harm: it may be anybody's.
//
// While a model is loaded a loss makes every call fail. After that it ends the process with LOST_EXIT, before anybody
// can take missing bytes for a result (docs/decisions/0034).
#pragma once

#include "channel.h"
#include "outbox.h"
#include "owed_answers.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <optional>

namespace mesh {

constexpr int LOST_EXIT = 86;
constexpr size_t OUTBOX_BYTES = 2 * PIECE_BYTES;

class connection;

// What one of several workers is asked of a SUM
struct sum_part {
    connection * link;
    sum_body body;
};

class connection {
public:
    // Takes over the socket. Connections are never destroyed: they end with the process
    connection(int socket, uint32_t place, std::string name);

    // Says HELLO, and waits for nothing: others may be greeted meanwhile. false: it is lost
    bool greet(const std::string & release);
    // What it answers; false: it is lost, refuses, or says nothing until then (its program may be starting)
    bool await_welcome(blob & welcome, std::chrono::steady_clock::time_point until);

    // From now on a loss ends the process
    void serve();

    // A request without an answer. false: the worker is lost
    bool send_bytes(message number, const blob & body, const void * more = nullptr, size_t size = 0);
    template <class Body> bool send(const Body & body, const void * more = nullptr, size_t size = 0) {
        writer out;
        body.put(out);
        return send_bytes(Body::number, out.data, more, size);
    }

    // A request whose answer is put into target, all of it at once, if wait() does not say before that the worker is
    // lost; until then target has to live. `loads`: bytes of weights that the worker has to read for it. 0: lost
    uint64_t ask(message number, const blob & body, message wanted, void * target, size_t size, uint64_t loads = 0);
    template <class Body> uint64_t ask(const Body & body, message wanted, void * target, size_t size) {
        writer out;
        body.put(out);
        return ask(Body::number, out.data, wanted, target, size);
    }
    // The same for all of an answer, however long it is
    uint64_t ask_whole(message number, message wanted, blob & target);
    // The same for bytes that are int32 from 0 to below the limit, or the worker is lost; 0: they may be anything
    uint64_t ask_places(const read_body & body, void * target, size_t size, int64_t limit);

    // Memory that the worker has promised: one that does not keep its word is lost, with this as the reason, and so
    // nobody waits for its answer. false: it is lost
    bool demand(const allocate_body & body, const std::string & otherwise);

    // Waits for that answer, or for all with a target. false: the worker is lost, and no target is touched any more
    bool wait(uint64_t id);
    bool wait_all();

    // Waits until the worker has read what it was sent before, or most of it. false: lost
    bool wait_for_room() { return outgoing.wait_for_room(); }
    // This worker pushes, and the other one takes; waits for neither, so that the caller may hold what others need.
    // false: one of them is lost
    bool push_to(connection & other, const push_body & push, const take_body & take);

    // The same for a SUM of several, each with what it is asked
    static bool add_up(const std::vector<sum_part> & parts);
    // A graph that the worker keeps; `may_wait`: as what goes with it, for nothing is read before the next one
    bool send_computation(const compute_body & body, bool may_wait);

    // What the watch asks: the last PROGRESS, bytes that came, whether nobody waits for this worker, nor it for others
    progress_body report();
    uint64_t received() const { return worker.received(); }
    bool is_idle();
    // A second has passed. Why this worker is not to be waited for any more, whatever it says of itself; or "".
    // `grace`: seconds for which nothing may pass
    std::string tick(uint32_t grace);
    // The worker is not to be waited for any more
    void lose(const std::string & why);

    // Held by whoever sends what must not be parted: a graph, and the note that it is kept there
    std::mutex order;

    // The id of the last request; 0: there is none
    uint64_t asked();
    // By which it is spoken of, set before WELCOME is awaited and only then
    void call(const std::string & now);
    const std::string & name() const { return called; }

private:
    struct pending {
        message wanted;
        void * target;
        size_t size;
        blob * whole;                              // in place of target: all of it, whatever its size
        std::optional<std::string> otherwise = {}; // in place of both: why it is lost if it does not say 1
        int64_t limit = 0;                         // as ask_places
    };

    uint64_t post(
        message number, const blob & body, const void * more, size_t size, uint64_t bytes, const pending * answer);
    uint64_t put(message number, const blob & body, const void * more, size_t size, bool may_wait = false);
    uint64_t put_sum(const sum_body & body);
    void await_member(uint64_t id, const connection & member, uint64_t sum);
    static void take_in(const pending & answer, const blob & said);
    void settle(uint64_t id);
    void cannot_send(const std::string & why);
    void receive();
    void receive_one(const wire_header & header);
    void take_progress(const wire_header & header);
    void take_answer(const wire_header & header);
    void check_owed(const wire_header & header) const;

    channel worker;
    outbox outgoing;
    const uint32_t place; // in the head's list of workers
    std::mutex mutex;
    std::condition_variable changed;
    std::string called;
    std::map<uint64_t, pending> answers; // that have not come
    std::atomic<size_t> open{ 0 };       // how many of those have a target, or 0 when it is lost
    lookout last;                        // of those answers
    blob welcomed;
    uint64_t last_id = 0;
    progress_body last_report;
    bool serving = false;
    bool gone = false;
    owed_answers owed;
    uint64_t passed = 0;                    // bytes of requests and answers until the last tick
    std::atomic<uint64_t> settled{ 0 };     // the request up to which all are done
    std::atomic<uint64_t> at{ UINT64_MAX }; // as owed_answers::at()
    blob coming;                            // an answer; of the thread that receives
    uint64_t told = 0;                      // bytes of PROGRESS
};

} // namespace mesh
