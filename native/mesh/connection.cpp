#include "connection.h"

#include "answered_values.h"
#include "half_rows.h"
#include "printable.h"
#include "report.h"
#include "trace.h"

#include <cstdio>
#include <thread>

#include <unistd.h>

namespace mesh {

static constexpr std::chrono::seconds LAST_WORDS{ 1 }; // they have come already, or nearly

connection::connection(int socket, uint32_t place, std::string name) :
    worker(socket, sender::worker),
    outgoing(worker, OUTBOX_BYTES, [this](const std::string & why) { cannot_send(why); }), place(place),
    called(std::move(name)) {}

uint64_t connection::asked() {
    std::lock_guard<std::mutex> lock(mutex);
    return last_id;
}

void connection::call(const std::string & now) {
    std::lock_guard<std::mutex> lock(mutex);
    called = now;
}

void connection::serve() {
    std::lock_guard<std::mutex> lock(mutex);
    serving = true;
}

void connection::lose(const std::string & why) {
    std::lock_guard<std::mutex> lock(mutex);
    if (gone) {
        return;
    }
    gone = true;
    std::fprintf(stderr, "mesh: lost %s: %s\n", called.c_str(), printable(why).c_str());
    mesh::report("lost " + std::to_string(place) + " " + why);
    if (serving) {
        std::fflush(nullptr);
        _exit(LOST_EXIT);
    }
    open = 0;
    settled = at = UINT64_MAX; // nobody else is excused by it
    changed.notify_all();
    outgoing.end();
    worker.shut();
}

// What it said before it went tells more than that it is gone
void connection::cannot_send(const std::string & why) {
    std::unique_lock<std::mutex> lock(mutex);
    const bool told_more = changed.wait_for(lock, LAST_WORDS, [&] { return gone; });
    lock.unlock();
    if (!told_more) {
        lose(why);
    }
}

progress_body connection::report() {
    std::lock_guard<std::mutex> lock(mutex);
    return last_report;
}

bool connection::is_idle() {
    std::lock_guard<std::mutex> lock(mutex);
    return owed.is_empty();
}

std::string connection::tick(uint32_t grace) {
    std::lock_guard<std::mutex> lock(mutex);
    outgoing.flush(); // a worker answers nothing that it was not asked
    // what a worker says of itself is no sign that anything passes
    const uint64_t now = outgoing.sent() + worker.received() - told;
    const uint64_t bytes = now > passed ? now - passed : 0;
    passed = now;
    const std::string why = owed.tick(bytes, outgoing.is_full(), grace);
    at = gone ? UINT64_MAX : owed.at();
    return why;
}

// The mutex is held, and so ids are in the order in which requests leave
uint64_t connection::put(message number, const blob & body, const void * more, size_t size, bool may_wait) {
    // what changes data is of no use before something reads or computes them, and what is asked back before it is
    // waited for
    may_wait = may_wait || number == message::write || number == message::fill || number == message::read;
    outgoing.put(number, ++last_id, body, more, size, may_wait);
    return last_id;
}

uint64_t connection::post(
    message number, const blob & body, const void * more, size_t size, uint64_t bytes, const pending * answer) {
    if (!outgoing.wait_for_room()) {
        return 0;
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (gone) {
        return 0;
    }
    if (answer != nullptr) {
        answers.emplace(last_id + 1, *answer);
        open += answer->otherwise ? 0 : 1;
    }
    owed.add(number, last_id + 1, bytes);
    return put(number, body, more, size);
}

bool connection::send_bytes(message number, const blob & body, const void * more, size_t size) {
    return post(number, body, more, size, size, nullptr) != 0;
}

uint64_t connection::ask(
    message number, const blob & body, message wanted, void * target, size_t size, uint64_t loads) {
    const pending answer = { wanted, target, size, nullptr };
    return post(number, body, nullptr, 0, loads, &answer);
}

uint64_t connection::ask_whole(message number, message wanted, blob & target) {
    const pending answer = { wanted, nullptr, 0, &target };
    return post(number, {}, nullptr, 0, 0, &answer);
}

uint64_t connection::ask_places(const read_body & body, void * target, size_t size, int64_t limit) {
    writer out;
    body.put(out);
    const pending answer = { message::data, target, size, nullptr, {}, limit };
    return post(message::read, out.data, nullptr, 0, 0, &answer);
}

bool connection::demand(const allocate_body & body, const std::string & otherwise) {
    writer out;
    body.put(out);
    const pending answer = { message::allocated, nullptr, allocated_body::bytes, nullptr, otherwise };
    return post(message::allocate, out.data, nullptr, 0, 0, &answer) != 0;
}

bool connection::send_computation(const compute_body & body, bool may_wait) {
    if (!outgoing.wait_for_room()) {
        return false;
    }
    writer out;
    body.put(out);
    std::lock_guard<std::mutex> lock(mutex);
    if (gone) {
        return false;
    }
    owed.add(message::compute, last_id + 1, 0);
    put(message::compute, out.data, nullptr, 0, may_wait);
    return true;
}

bool connection::wait(uint64_t id) {
    outgoing.flush();
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return gone || answers.count(id) == 0; });
    return !gone;
}

bool connection::wait_all() {
    outgoing.flush();
    std::unique_lock<std::mutex> lock(mutex);
    if (gone || open == 0) {
        return !gone;
    }
    const traced waiting("wait", place);
    lock.unlock();
    const auto is_there = [&] { return gone || open == 0; };
    const auto began = last.look([&] { return open == 0; },
        [&](lookout::duration most) {
            lock.lock();
            changed.wait_for(lock, most, is_there);
            lock.unlock();
        });
    lock.lock();
    changed.wait(lock, is_there);
    last.came(began);
    return !gone;
}

bool connection::greet(const std::string & release) {
    std::thread([this] { receive(); }).detach();
    hello_body body;
    body.version = VERSION;
    writer out;
    body.put(out);
    out.put_text(release);
    const pending answer = { message::welcome, nullptr, 0, &welcomed };
    return post(message::hello, out.data, nullptr, 0, 0, &answer) != 0;
}

bool connection::await_welcome(blob & welcome, std::chrono::steady_clock::time_point until) {
    std::unique_lock<std::mutex> lock(mutex);
    if (!changed.wait_until(lock, until, [&] { return gone || answers.count(1) == 0; })) {
        lock.unlock();
        lose("it does not say WELCOME");
        return false;
    }
    welcome = std::move(welcomed);
    return !gone;
}

void connection::receive() {
    try {
        wire_header header;
        while (worker.read_header(header)) {
            receive_one(header);
        }
        lose("it ended");
    } catch (const std::exception & error) {
        lose(error.what());
    }
}

void connection::receive_one(const wire_header & header) {
    if (static_cast<message>(header.kind) == message::failed) {
        const blob why = worker.read_body(header);
        throw bad_message("it says: " + std::string(why.begin(), why.end()));
    }
    if (static_cast<message>(header.kind) == message::progress) {
        take_progress(header);
    } else {
        take_answer(header);
    }
}

// All up to this request are done. The mutex is held
void connection::settle(uint64_t id) {
    const uint64_t done = answers.empty() ? id : std::min(id, answers.begin()->first - 1);
    if (done > settled && !gone) {
        settled = done;
        owed.settle(done);
    }
}

void connection::take_progress(const wire_header & header) {
    uint8_t body[progress_body::bytes];
    worker.read_body(body, sizeof body);
    reader in(body, sizeof body);
    const auto now = progress_body::take(in);
    std::lock_guard<std::mutex> lock(mutex);
    told += wire_header::bytes + sizeof body;
    if (header.id != 0 || last_id == 0 || answers.count(1) != 0) {
        throw bad_message("it says PROGRESS as an answer, or before WELCOME");
    }
    if (now.done > last_id || now.request > last_id || now.done < last_report.done) {
        throw bad_message("it says that it does what it was not asked, or has undone what it had done");
    }
    if (!answers.empty() && now.done >= answers.begin()->first) {
        throw bad_message("it says that it has done what it has not answered");
    }
    last_report = now;
    settle(now.done);
}

// llama-server follows tokens that it reads wherever they lead
static void check_places(const blob & said, int64_t limit) {
    const auto * values = reinterpret_cast<const int32_t *>(said.data());
    const int32_t * wrong = limit > 0 ? find_beyond(values, said.size() / sizeof *values, limit) : nullptr;
    if (wrong != nullptr) {
        throw bad_message("it answers with place " + std::to_string(*wrong) + " of " + std::to_string(limit));
    }
}

// Throws bad_message where it is not what was promised
void connection::take_in(const pending & answer, const blob & said) {
    if (answer.otherwise) {
        reader in(said);
        if (allocated_body::take(in).done != 1) {
            throw bad_message(*answer.otherwise);
        }
    } else if (answer.whole != nullptr) {
        *answer.whole = said;
    } else if (!said.empty()) {
        check_places(said, answer.limit);
        std::memcpy(answer.target, said.data(), said.size());
    }
}

// Throws bad_message where nothing of the kind is owed. Memory is answered for in its turn: nothing that was asked
// behind it is done before
void connection::check_owed(const wire_header & header) const {
    const auto found = answers.find(header.id);
    if (found == answers.end() || static_cast<uint16_t>(found->second.wanted) != header.kind) {
        throw bad_message("it answers what was not asked");
    }
    if (found->second.whole == nullptr && header.size != found->second.size) {
        throw bad_message("it answers with another number of bytes than was asked for");
    }
    const auto is_memory = [](const auto & one) { return one.second.otherwise.has_value(); };
    if (open < answers.size() && std::any_of(answers.begin(), found, is_memory)) {
        throw bad_message("it answers before it has answered ALLOCATE");
    }
}

void connection::take_answer(const wire_header & header) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        check_owed(header);
    }
    coming.resize(header.size);
    worker.read_body(coming.data(), coming.size());
    std::lock_guard<std::mutex> lock(mutex);
    if (gone) {
        return; // nobody waits for it any more, and its target may be gone as well
    }
    const pending & answer = answers.at(header.id);
    take_in(answer, coming);
    open -= answer.otherwise ? 0 : 1;
    answers.erase(header.id);
    settle(header.id);
    changed.notify_all();
}

} // namespace mesh
