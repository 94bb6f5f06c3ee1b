#include "connection.h"

#include "report.h"

#include <cstdio>
#include <thread>

#include <unistd.h>

namespace mesh {

static constexpr std::chrono::seconds LAST_WORDS{ 1 }; // they have come already, or nearly

connection::connection(int socket, uint32_t place, std::string name) :
    name(std::move(name)), worker(socket, sender::worker), place(place) {}

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
    std::fprintf(stderr, "mesh: lost %s: %s\n", name.c_str(), why.c_str());
    mesh::report("lost " + std::to_string(place) + " " + why);
    if (serving) {
        std::fflush(nullptr);
        _exit(LOST_EXIT);
    }
    changed.notify_all();
    worker.shut();
}

progress_body connection::report() {
    std::lock_guard<std::mutex> lock(mutex);
    return last_report;
}

uint64_t connection::last_request() {
    std::lock_guard<std::mutex> lock(mutex);
    return last_id;
}

bool connection::send_bytes(message number, const std::vector<uint8_t> & body, const void * more, size_t size) {
    uint64_t id;
    {
        std::lock_guard<std::mutex> lock(mutex);
        id = ++last_id;
    }
    return write(number, id, body, more, size);
}

bool connection::write(message number, uint64_t id, const std::vector<uint8_t> & body, const void * more, size_t size) {
    {
        std::lock_guard<std::mutex> lock(mutex);
        if (gone) {
            return false;
        }
    }
    try {
        // what changes data is of no use before something reads or computes them
        const bool may_wait = number == message::write || number == message::fill;
        worker.write(number, id, body, more, size, may_wait);
        return true;
    } catch (const lost & error) {
        // what it said before it went tells more than that it is gone
        std::unique_lock<std::mutex> lock(mutex);
        const bool told = changed.wait_for(lock, LAST_WORDS, [&] { return gone; });
        lock.unlock();
        if (!told) {
            lose(error.what());
        }
        return false;
    }
}

uint64_t connection::expect(const pending & answer) {
    std::lock_guard<std::mutex> lock(mutex);
    answers.emplace(++last_id, answer);
    return last_id;
}

uint64_t connection::ask(
    message number, const std::vector<uint8_t> & body, message wanted, void * target, size_t size) {
    const uint64_t id = expect({ wanted, target, size, nullptr });
    return write(number, id, body, nullptr, 0) ? id : 0;
}

bool connection::wait(uint64_t id) {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return gone || answers.count(id) == 0; });
    return !gone;
}

bool connection::wait_all() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return gone || answers.empty(); });
    return !gone;
}

bool connection::greet(
    const std::string & release, std::vector<uint8_t> & welcome, std::chrono::milliseconds patience) {
    std::thread([this] { receive(); }).detach();
    hello_body body;
    body.version = VERSION;
    writer out;
    body.put(out);
    out.put_text(release);
    const uint64_t id = expect({ message::welcome, nullptr, 0, &welcome });
    if (!write(message::hello, id, out.data, nullptr, 0)) {
        return false;
    }
    bool answered;
    {
        std::unique_lock<std::mutex> lock(mutex);
        answered = changed.wait_for(lock, patience, [&] { return gone || answers.count(id) == 0; });
    }
    if (!answered) {
        lose("it does not say WELCOME");
    }
    return wait(id);
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
        const std::vector<uint8_t> why = worker.read_body(header);
        throw bad_message("it says: " + std::string(why.begin(), why.end()));
    }
    if (static_cast<message>(header.kind) == message::progress) {
        uint8_t body[progress_body::bytes];
        worker.read_body(body, sizeof body);
        reader in(body, sizeof body);
        std::lock_guard<std::mutex> lock(mutex);
        last_report = progress_body::take(in);
        return;
    }
    pending answer;
    {
        std::lock_guard<std::mutex> lock(mutex);
        const auto found = answers.find(header.id);
        if (found == answers.end() || static_cast<uint16_t>(found->second.wanted) != header.kind) {
            throw bad_message("it answers what was not asked");
        }
        answer = found->second;
    }
    std::vector<uint8_t> whole;
    if (answer.whole != nullptr) {
        whole = worker.read_body(header);
    } else if (header.size != answer.size) {
        throw bad_message("it answers with another number of bytes than was asked for");
    } else {
        worker.read_body(answer.target, answer.size);
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (answer.whole != nullptr && !gone) { // else nobody waits for it any more
        *answer.whole = std::move(whole);
    }
    answers.erase(header.id);
    changed.notify_all();
}

} // namespace mesh
