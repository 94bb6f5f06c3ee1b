// Between two threads: a queue that is bounded in bytes, and that either side can end.
#pragma once

#include "lookout.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

namespace mesh {

template <class Item> class queue {
public:
    explicit queue(size_t room) : room(room) {}

    // Waits for room; one item always fits. false: it has ended, and the item is dropped
    bool put(Item item, size_t size) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return ended || items.empty() || held + size <= room; });
        if (ended) {
            return false;
        }
        held += size;
        items.emplace_back(std::move(item), size);
        ready = true;
        changed.notify_all();
        return true;
    }

    // Waits for an item. false: it has ended, and there are no more
    bool take(Item & item) {
        const auto is_there = [&] { return ended || !items.empty(); };
        const auto began = next.look([&] { return ready.load(); },
            [&](lookout::duration most) {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait_for(lock, most, is_there);
            });
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, is_there);
        next.came(began);
        if (items.empty()) {
            return false;
        }
        item = std::move(items.front().first);
        held -= items.front().second;
        items.pop_front();
        ready = ended || !items.empty();
        changed.notify_all();
        return true;
    }

    // Whether take() would not wait
    bool is_ready() const { return ready; }

    // Nothing more comes; what is there can still be taken
    void end() {
        std::lock_guard<std::mutex> lock(mutex);
        ended = true;
        ready = true;
        changed.notify_all();
    }

private:
    const size_t room;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::pair<Item, size_t>> items;
    size_t held = 0;
    bool ended = false;
    std::atomic<bool> ready{ false }; // to take, or to find that it has ended
    lookout next;
};

} // namespace mesh
