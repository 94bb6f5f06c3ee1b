#include "neighbours.h"

#include "report.h"

#include <unistd.h>

namespace mesh {

// Workers that compute equal shares are hardly later than each other
static constexpr std::chrono::microseconds SOON{ 2000 };
static constexpr char SOMETHING_ELSE[] = "it pushed something else than the head says";

neighbours::neighbours(const std::vector<neighbour_socket> & sockets, bool more) {
    for (const auto & one : sockets) {
        add(one);
    }
    if (!more) {
        complete();
    }
}

neighbours::~neighbours() {
    end();
    for (auto & one : all) {
        one.second->reading.join();
    }
    for (const auto & one : unstarted) {
        close(one.second.socket);
    }
}

void neighbours::add(const neighbour_socket & one) {
    std::lock_guard<std::mutex> lock(mutex);
    if (is_complete || one.number >= NEIGHBOURS || !unstarted.emplace(one.number, one).second) {
        close(one.socket);
        const char * why = is_complete ? " comes too late" : one.number < NEIGHBOURS ? " is there twice" : " cannot be";
        throw std::runtime_error("neighbour " + std::to_string(one.number) + why);
    }
}

void neighbours::complete() {
    std::lock_guard<std::mutex> lock(mutex);
    if (is_complete || ended) {
        return;
    }
    const size_t room = QUEUE_BYTES / std::max<size_t>(unstarted.size(), 1);
    for (const auto & one : unstarted) {
        all[one.first] = std::make_unique<neighbour>(one.second, room);
    }
    unstarted.clear();
    for (auto & one : all) {
        neighbour & started = *one.second;
        started.reading = std::thread([&started] { started.read(); });
    }
    is_complete = true;
    changed.notify_all();
}

void neighbours::end() {
    std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    for (auto & one : all) {
        one.second->coming.end();
        one.second->going.end();
        one.second->link.shut();
    }
    changed.notify_all();
}

neighbours::neighbour::neighbour(const neighbour_socket & one, size_t room) :
    self(one), link(one.socket, sender::neighbour, one.keys == nullptr ? nullptr : make_sealed(*one.keys)),
    coming(room), going(link, room, [this](const std::string &) {
        link.shut(); // the reader finds the same
        going.end();
    }) {
    self.keys.reset(); // what seals has them
}

// The parent times them (meshd/worker/turn_times.py), and notices by the count when a line is missing
void neighbours::neighbour::tell_came() {
    if (self.is_direct) {
        report("came " + std::to_string(self.number) + ' ' + std::to_string(++came) + ' ' +
               std::to_string(link.received()));
    }
}

void neighbours::neighbour::tell_pushed(size_t body) {
    if (self.is_direct) {
        std::lock_guard<std::mutex> lock(telling);
        pushed_bytes += wire_header::bytes + body;
        report("pushed " + std::to_string(self.number) + ' ' + std::to_string(++pushed) + ' ' +
               std::to_string(pushed_bytes));
    }
}

void neighbours::neighbour::read() {
    for (;;) {
        {
            std::lock_guard<std::mutex> turn(reading_turn);
            if (!read_what_is_there(SIZE_MAX)) {
                return;
            }
        }
        link.await_more();
    }
}

// So many messages at most. Its turn is held. false: nothing more comes
bool neighbours::neighbour::read_what_is_there(size_t most) {
    try {
        for (size_t count = 0; count < most && !is_over; count++) {
            wire_header header;
            const auto found = link.read_header_now(header);
            if (found == channel::found::nothing) {
                return true;
            }
            is_over = found == channel::found::end || !keep(header);
        }
    } catch (const std::exception & error) {
        why = error.what();
        link.shut(); // what it broke once is not trusted with anything else
        is_over = true;
    }
    if (is_over) {
        coming.end();
    }
    return !is_over;
}

// Reads the rest of a message. false: nobody takes it any more
bool neighbours::neighbour::keep(const wire_header & header) {
    piece one;
    one.is_summand = header.kind == static_cast<uint16_t>(message::summand);
    uint8_t token[pushed_body::bytes];
    link.read_body(token, sizeof token);
    reader in(token, sizeof token);
    one.token = pushed_body::take(in).token;
    one.data.resize(header.size - sizeof token);
    link.read_body(one.data.data(), one.data.size());
    if (!one.is_summand) { // a token has hundreds, and the parent no use for each of them
        tell_came();
    }
    const size_t size = sizeof one + one.data.size();
    return coming.put(std::move(one), size);
}

// Reads the next message itself if it comes within so long: to have another thread woken, and to be woken by that one,
// would take longer than most sums
void neighbours::neighbour::look_for_next(std::chrono::microseconds most) {
    sums.look_for(most, [this] {
        if (coming.is_ready()) {
            return true;
        }
        std::unique_lock<std::mutex> turn(reading_turn, std::try_to_lock);
        // asked again in the turn, in which nobody else puts: there is room for one where there is none
        return turn.owns_lock() && (coming.is_ready() || !read_what_is_there(1) || coming.is_ready());
    });
}

// Waits until they are complete; none comes or goes after that
void neighbours::await_all() const {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return is_complete || ended; });
    if (!is_complete) {
        throw interrupted();
    }
}

neighbours::neighbour & neighbours::at(uint32_t number) const {
    await_all();
    const auto found = all.find(number);
    if (found == all.end()) {
        throw bad_message("there is no neighbour " + std::to_string(number));
    }
    return *found->second;
}

void neighbours::fail(uint32_t number, const std::string & why) const {
    if (ended) {
        throw interrupted();
    }
    throw std::runtime_error("lost neighbour " + std::to_string(number) + ": " + why);
}

uint64_t neighbours::received(uint32_t number) const {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = all.find(number);
    return found == all.end() ? 0 : found->second->link.received();
}

std::vector<uint32_t> neighbours::numbers() const {
    await_all();
    std::vector<uint32_t> found;
    for (const auto & one : all) {
        found.push_back(one.first);
    }
    return found;
}

void neighbours::push(uint32_t number, uint64_t token, blob data) {
    neighbour & to = at(number);
    if (!to.going.wait_for_room()) {
        fail(number, "it takes no more");
    }
    pushed_body body;
    body.token = token;
    writer out;
    body.put(out);
    const size_t size = out.data.size() + data.size();
    to.going.put(message::pushed, 0, out.data, std::move(data));
    to.tell_pushed(size);
}

void neighbours::push_summand(uint32_t number, uint64_t token, const blob & data) {
    neighbour & to = at(number);
    if (!to.going.wait_for_room()) {
        fail(number, "it takes no more");
    }
    summand_body body;
    body.token = token;
    writer out;
    body.put(out);
    to.going.put(message::summand, 0, out.data, data.data(), data.size(), false);
}

// Waits for it
blob neighbours::take_next(uint32_t number, uint64_t token, bool is_summand) {
    neighbour & from = at(number);
    from.look_for_next(is_summand ? SOON : std::chrono::microseconds::zero());
    piece one;
    if (!from.coming.take(one)) {
        fail(number, from.why);
    }
    if (one.token != token || one.is_summand != is_summand) {
        fail(number, SOMETHING_ELSE);
    }
    return std::move(one.data);
}

blob neighbours::take(uint32_t number, uint64_t token, uint32_t size) {
    blob data = take_next(number, token, false);
    if (data.size() != size) {
        fail(number, SOMETHING_ELSE);
    }
    return data;
}

blob neighbours::take_summand(uint32_t number, uint64_t token) {
    return take_next(number, token, true);
}

} // namespace mesh
