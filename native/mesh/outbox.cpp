#include "outbox.h"

namespace mesh {

// Longer data are sent from where they lie; more than this does not wait
static constexpr size_t SHORT_BYTES = 16 * 1024;
static constexpr size_t WAITING_BYTES = 64 * 1024;

outbox::~outbox() {
    end();
    if (sending.joinable()) {
        sending.join();
    }
}

bool outbox::wait_for_room() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return ended || held <= room; });
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
    send_or_copy(more, more_size);
}

void outbox::put(message number, uint64_t id, const blob & body, blob more) {
    std::lock_guard<std::mutex> lock(mutex);
    put_header(waiting, number, id, body.size() + more.size());
    waiting.put_bytes(body.data(), body.size());
    const size_t sent = send_waiting(more.data(), more.size());
    keep(std::move(more), sent);
}

void outbox::flush() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!waiting.data.empty()) {
        send_or_copy(nullptr, 0);
    }
}

// The mutex is held
void outbox::send_or_copy(const void * more, size_t more_size) {
    const size_t sent = send_waiting(more, more_size);
    const auto * rest = static_cast<const uint8_t *>(more) + sent;
    keep(sent < more_size ? blob(rest, rest + (more_size - sent)) : blob(), 0);
}

// Sends what the other side reads at once, and keeps the rest of what waited. How many bytes of `more` were sent. The
// mutex is held
size_t outbox::send_waiting(const void * more, size_t more_size) {
    size_t sent = 0;
    if (held == 0) {
        sent = to.send_now(waiting.data.data(), waiting.data.size(), more, more_size);
        left += sent;
    }
    const size_t first = std::min(sent, waiting.data.size());
    keep(blob(waiting.data.begin() + static_cast<ptrdiff_t>(first), waiting.data.end()), 0);
    waiting.data.clear();
    return sent - first;
}

void outbox::keep(blob data, size_t at) {
    if (at == data.size() || ended) {
        return;
    }
    held += data.size() - at;
    kept.push_back({ std::move(data), at });
    if (!sending.joinable()) {
        sending = std::thread([this] { send_kept(); });
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
            piece & first = kept.front(); // it stays where it is while others come behind it
            lock.unlock();
            const size_t size = first.data.size() - first.at;
            while (first.at < first.data.size()) {
                const size_t sent = to.send_some(first.data.data() + first.at, first.data.size() - first.at);
                first.at += sent;
                left += sent;
            }
            lock.lock();
            held -= size;
            kept.pop_front();
            changed.notify_all();
        }
    } catch (const lost & error) {
        broken(error.what());
    }
}

void outbox::finish() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return ended || kept.empty(); });
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
