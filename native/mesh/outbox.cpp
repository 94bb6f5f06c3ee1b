#include "outbox.h"

#include <thread>

namespace mesh {

// Longer data are sent from where they lie; more than this does not wait
static constexpr size_t SHORT_BYTES = 16 * 1024;
static constexpr size_t WAITING_BYTES = 64 * 1024;

bool outbox::wait_for_room() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return ended || held <= OUTBOX_BYTES; });
    return !ended;
}

void outbox::put(message number, uint64_t id, const blob & body, const void * more, size_t more_size, bool may_wait) {
    std::lock_guard<std::mutex> lock(mutex);
    put_header(waiting, number, id, body.size() + more_size);
    waiting.put_bytes(body.data(), body.size());
    if (more_size <= SHORT_BYTES) {
        waiting.put_bytes(more, more_size);
        more_size = 0;
    }
    if (may_wait && more_size == 0 && waiting.data.size() <= WAITING_BYTES) {
        return;
    }
    send_waiting(more, more_size);
}

void outbox::flush() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!waiting.data.empty()) {
        send_waiting(nullptr, 0);
    }
}

// The mutex is held
void outbox::send_waiting(const void * more, size_t more_size) {
    size_t sent = 0;
    if (held == 0) {
        sent = to.send_now(waiting.data.data(), waiting.data.size(), more, more_size);
        left += sent;
    }
    const size_t first = std::min(sent, waiting.data.size());
    keep(waiting.data.data() + first, waiting.data.size() - first);
    keep(static_cast<const uint8_t *>(more) + (sent - first), more_size - (sent - first));
    waiting.data.clear();
}

void outbox::keep(const uint8_t * data, size_t size) {
    if (size == 0 || ended) {
        return;
    }
    kept.emplace_back(data, data + size);
    held += size;
    if (!started) {
        started = true;
        std::thread([this] { send_kept(); }).detach();
    }
    changed.notify_all();
}

void outbox::send_kept() {
    try {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            changed.wait(lock, [&] { return ended || !kept.empty(); });
            if (ended) {
                return;
            }
            const blob & first = kept.front(); // it stays where it is while others come behind it
            lock.unlock();
            for (size_t at = 0; at < first.size();) {
                const size_t sent = to.send_some(first.data() + at, first.size() - at);
                at += sent;
                left += sent;
            }
            lock.lock();
            held -= first.size();
            kept.pop_front();
            changed.notify_all();
        }
    } catch (const lost & error) {
        broken(error.what());
    }
}

void outbox::end() {
    std::lock_guard<std::mutex> lock(mutex);
    ended = true;
    changed.notify_all();
}

bool outbox::is_full() {
    std::lock_guard<std::mutex> lock(mutex);
    return held > 0;
}

} // namespace mesh
