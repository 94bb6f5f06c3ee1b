#include "blob.h"

#include "protocol.h"

#include <mutex>

namespace mesh {

// Two kinds of slots: a piece with all that comes before it, and what a token needs
static constexpr size_t LARGE = PIECE_BYTES + 4096;
static constexpr size_t SMALL = 64 * 1024;
static constexpr size_t LEAST = 1024; // less than this is copied at once, wherever it lies
// of large ones: those that a full queue of requests has, and as many on their way to and from the devices
static constexpr size_t LARGE_COUNT = 2 * QUEUE_BYTES / PIECE_BYTES;
static constexpr size_t SMALL_COUNT = 128;

const size_t STAGING_BYTES = LARGE * LARGE_COUNT + SMALL * SMALL_COUNT;

namespace {

// Slots of one size that are not in use
class shelf {
public:
    void open(uint8_t * memory, size_t slot, size_t count) {
        first = memory;
        end = memory + slot * count;
        for (size_t i = 0; i < count; i++) {
            spare.push_back(memory + slot * i);
        }
    }

    void * take() {
        if (spare.empty()) {
            return nullptr;
        }
        uint8_t * found = spare.back(); // the one that was used last
        spare.pop_back();
        return found;
    }

    bool give(uint8_t * memory) {
        if (memory < first || memory >= end) {
            return false;
        }
        spare.push_back(memory);
        return true;
    }

private:
    uint8_t * first = nullptr;
    uint8_t * end = nullptr;
    std::vector<uint8_t *> spare;
};

struct staging {
    std::mutex mutex;
    shelf large;
    shelf small;
};

} // namespace

// Never destroyed: blobs may be, behind it
static staging & all() {
    static auto * one = new staging();
    return *one;
}

void open_staging(void * memory, size_t size) {
    auto * first = static_cast<uint8_t *>(memory);
    if (size < STAGING_BYTES) {
        return;
    }
    std::lock_guard<std::mutex> lock(all().mutex);
    all().large.open(first, LARGE, LARGE_COUNT);
    all().small.open(first + LARGE * LARGE_COUNT, SMALL, SMALL_COUNT);
}

void * take_bytes(size_t size) {
    if (size >= LEAST && size <= LARGE) {
        std::lock_guard<std::mutex> lock(all().mutex);
        void * found = (size <= SMALL ? all().small : all().large).take();
        if (found != nullptr) {
            return found;
        }
    }
    return ::operator new(size);
}

void give_bytes(void * memory) noexcept {
    {
        std::lock_guard<std::mutex> lock(all().mutex);
        if (all().large.give(static_cast<uint8_t *>(memory)) || all().small.give(static_cast<uint8_t *>(memory))) {
            return;
        }
    }
    ::operator delete(memory);
}

} // namespace mesh
