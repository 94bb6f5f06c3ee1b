#include "session.h"

#include <thread>

namespace mesh {

session::session(
    channel & head, const std::vector<lent_device> & devices, const local_weights & files, neighbours & others) :
    head(head), others(others),
    work_off(devices, files, others,
        [this](message number, uint64_t id, std::vector<uint8_t> body) { answer(number, id, std::move(body)); }),
    requests(QUEUE_BYTES), replies(QUEUE_BYTES) {}

void session::read_requests() {
    try {
        request one;
        while (head.read_header(one.header)) {
            one.body = head.read_body(one.header);
            const size_t size = sizeof one + one.body.size();
            if (!requests.put(std::move(one), size)) {
                return;
            }
        }
    } catch (const std::exception & error) {
        broken = error.what();
    }
    requests.end();
    others.end();
}

void session::write_replies() {
    try {
        reply one;
        while (replies.take(one)) {
            head.write(one.number, one.id, one.body);
        }
    } catch (const lost &) {
        head.shut(); // the reader finds the same
    }
    replies.end();
}

void session::answer(message number, uint64_t id, std::vector<uint8_t> body) {
    const size_t size = sizeof(reply) + body.size();
    if (!replies.put({ number, id, std::move(body) }, size)) {
        throw lost("the head takes no more answers");
    }
}

void session::run() {
    std::thread reading([this] { read_requests(); });
    std::thread writing([this] { write_replies(); });
    std::string failed;
    try {
        work();
    } catch (const std::exception & error) {
        failed = error.what();
    }
    requests.end();
    replies.end();
    writing.join(); // what has been answered goes out, FAILED last
    head.shut();
    reading.join();
    if (failed.empty()) {
        failed = broken;
    }
    if (!failed.empty()) {
        throw bad_message(failed);
    }
}

void session::work() {
    request one;
    while (requests.take(one)) {
        try {
            work_off.handle(one.header, one.body);
        } catch (const interrupted &) {
            return;
        } catch (const lost &) {
            throw;
        } catch (const std::exception & error) {
            const std::string why = std::string(error.what()).substr(0, TEXT_BYTES);
            answer(message::failed, one.header.id, std::vector<uint8_t>(why.begin(), why.end()));
            throw;
        }
    }
}

} // namespace mesh
