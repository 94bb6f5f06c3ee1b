#include "session.h"

#include <algorithm>
#include <thread>

namespace mesh {

static bool all_cpus(const std::vector<lent_device> & devices) {
    return std::all_of(devices.begin(), devices.end(), [](const lent_device & one) { return is_cpu(one.backend); });
}

session::session(channel & head, const std::vector<lent_device> & devices, const local_weights & files,
    neighbours & others, std::function<void()> abandon, std::chrono::milliseconds second) :
    head(head), others(others),
    work_off(
        devices, files, others, [this](message number, uint64_t id, blob body) { answer(number, id, std::move(body)); },
        [this] { requests.end(); }),
    requests(QUEUE_BYTES), replies(head, QUEUE_BYTES, [this](const std::string &) { end_replies(); }),
    abandon(std::move(abandon)), second(second), by_cpu(all_cpus(devices)) {}

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
    } catch (...) {
        broken = std::current_exception();
    }
    work_off.doing.cancelled = true;
    requests.end();
    others.end();
}

// Nothing more can be sent
void session::end_replies() {
    head.shut(); // the reader finds the same
    replies.end();
}

void session::answer(message number, uint64_t id, blob body) {
    if (!replies.wait_for_room()) {
        throw lost("the head takes no more answers");
    }
    replies.put(number, id, {}, std::move(body));
}

void session::run() {
    std::thread reading([this] { read_requests(); });
    std::thread watching([this] { say_progress(); });
    std::exception_ptr failed;
    try {
        work();
    } catch (...) {
        failed = std::current_exception();
    }
    work_off.wait(); // a device that does not come back is given up by who says how far it is
    {
        std::lock_guard<std::mutex> lock(mutex);
        ended = true;
        changed.notify_all();
    }
    watching.join();
    requests.end();
    replies.finish(); // what has been answered goes out, FAILED last
    head.shut();
    reading.join();
    if (failed || broken) {
        std::rethrow_exception(failed ? failed : broken);
    }
}

// From WELCOME on
void session::say_progress() {
    progress & doing = work_off.doing;
    progress_watch counted(doing, by_cpu);
    uint64_t told = 0;    // bytes of PROGRESS
    uint64_t answers = 0; // bytes of all else that has been sent
    std::unique_lock<std::mutex> lock(mutex);
    for (uint32_t passed = 1; !changed.wait_for(lock, second, [&] { return ended; }); passed++) {
        const uint64_t sent = replies.sent();
        if (sent > told + answers) {
            answers = sent - told;
            doing.steps++; // it may be all that moves
        }
        // only from the one that it waits for: another one could make a silent path look alive
        const uint32_t waits = doing.flying != 0 ? 0 : doing.waits.load();
        const progress_body body = counted.tick(waits == 0 ? 0 : others.received(waits - 1));
        if (counted.is_stuck()) {
            abandon();
        }
        if (passed % PROGRESS_SECONDS == 0 && doing.done != 0 && !replies.is_full()) {
            writer out;
            body.put(out);
            replies.put(message::progress, 0, {}, std::move(out.data));
            told += wire_header::bytes + progress_body::bytes;
        }
    }
}

void session::work() {
    request one;
    try {
        while (requests.take(one)) {
            work_off.handle(one.header, std::move(one.body));
        }
        work_off.settle();
    } catch (const interrupted &) {
        return;
    } catch (const lost &) {
        throw;
    } catch (const std::exception & error) {
        if (work_off.doing.cancelled) {
            return; // the head went first, and its neighbours with it
        }
        work_off.wait(); // what was asked before is answered before
        const std::string why = std::string(error.what()).substr(0, TEXT_BYTES);
        answer(message::failed, one.header.id, blob(why.begin(), why.end()));
        throw;
    }
}

} // namespace mesh
