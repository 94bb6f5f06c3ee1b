// Buffers of a CPU lie in large pages soon after something was computed, with what was in them.
#include "buffers.h"
#include "check.h"
#include "large_pages.h"
#include "progress.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

using namespace mesh;

static constexpr uint64_t SIZE = 16 << 20;
static constexpr uint64_t LEAST = SIZE - (4 << 20); // its edges stay as they are

// Of the memory around an address: how much lies in large pages
static uint64_t in_large_pages(const void * address) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    std::ifstream map("/proc/self/smaps");
    bool is_it = false;
    for (std::string line; std::getline(map, line);) {
        uintptr_t from = 0;
        uintptr_t to = 0;
        if (std::sscanf(line.c_str(), "%lx-%lx ", &from, &to) == 2) {
            is_it = from <= at && at < to;
        }
        unsigned long kib = 0;
        if (is_it && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) {
            return static_cast<uint64_t>(kib) << 10;
        }
    }
    return 0;
}

// Whether this machine gives them to who asks, and only then
static bool asks() {
    std::string enabled;
    std::getline(std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"), enabled);
    return enabled.find("[madvise]") != std::string::npos;
}

struct lent_memory {
    lent_memory() : held(devices) {}

    uint8_t * allocate(uint32_t number) {
        CHECK(held.allocate(number, 0, SIZE));
        uint8_t * data = held.find(number, 0, SIZE).data;
        std::memset(data, static_cast<int>(number), SIZE);
        held.filled(number, SIZE);
        return data;
    }

    ggml_backend_ptr backend{ ggml_backend_cpu_init() };
    std::vector<lent_device> devices = { { backend.get(), 8 * SIZE } };
    buffers held;
};

TEST(memory_is_laid_into_large_pages_once_something_was_computed) {
    if (!asks()) {
        return;
    }
    lent_memory memory;
    const uint8_t * first = memory.allocate(1);
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    CHECK(in_large_pages(first) < LEAST);
    memory.held.computed();
    while (in_large_pages(first) < LEAST) {
        CHECK(std::chrono::steady_clock::now() < limit);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const uint8_t * second = memory.allocate(2); // a cache that is made anew, say
    memory.held.computed();
    while (in_large_pages(second) < LEAST) {
        CHECK(std::chrono::steady_clock::now() < limit);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    CHECK(std::all_of(first, first + SIZE, [](uint8_t byte) { return byte == 1; }));
    CHECK(std::all_of(second, second + SIZE, [](uint8_t byte) { return byte == 2; }));
}

// Of which little is used, and that may never be
TEST(memory_that_was_not_filled_stays_as_it_is) {
    if (!asks()) {
        return;
    }
    lent_memory memory;
    CHECK(memory.held.allocate(1, 0, SIZE) && memory.held.allocate(2, 0, SIZE));
    uint8_t * cache = memory.held.find(1, 0, SIZE).data;
    std::memset(cache, 1, SIZE / 2);
    memory.held.filled(1, SIZE / 2);
    const uint8_t * weights = memory.allocate(3);
    memory.held.computed();
    memory.held.filled(1, SIZE); // inputs of steps, say
    memory.held.computed();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (in_large_pages(weights) < LEAST) {
        CHECK(std::chrono::steady_clock::now() < limit);
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    CHECK(in_large_pages(cache) == 0);
}

TEST(memory_is_freed_while_it_is_laid_together) {
    lent_memory memory;
    for (int round = 0; round < 20; round++) {
        const uint8_t * kept = memory.allocate(1);
        memory.allocate(2);
        memory.held.computed();
        memory.held.free(2);
        CHECK(kept[SIZE - 1] == 1);
        memory.held.free(1);
    }
    memory.allocate(3); // and as it ends
    memory.held.computed();
}

TEST(memory_is_freed_at_once_beside_what_is_laid_together) {
    static constexpr uint64_t LARGE = 1ull << 30; // takes seconds
    if (!asks()) {
        return;
    }
    const ggml_backend_ptr backend{ ggml_backend_cpu_init() };
    const std::vector<lent_device> devices = { { backend.get(), 2 * LARGE } };
    buffers held(devices);
    CHECK(held.allocate(1, 0, LARGE) && held.allocate(2, 0, SIZE));
    uint8_t * large = held.find(1, 0, LARGE).data;
    std::memset(large, 1, LARGE);
    held.filled(1, LARGE);
    held.computed();
    while (in_large_pages(large) == 0) { // it has begun
        std::this_thread::yield();
    }
    held.free(2);
    CHECK(in_large_pages(large) < LARGE / 2);
}

TEST(laying_memory_together_is_no_sign_of_life) {
    static constexpr uint64_t LARGE = 512 << 20;
    static constexpr uint32_t COUNT = 4;     // of those: a fast machine lays one in less time than is enough
    static constexpr double ENOUGH = 0.15;   // seconds: more than the least that counts as work
    static constexpr uint32_t PATIENCE = 60; // looks in which nothing was laid
    if (!asks() || !runs_alone("laying_memory_together_is_no_sign_of_life")) {
        return;
    }
    const ggml_backend_ptr backend{ ggml_backend_cpu_init() };
    const std::vector<lent_device> devices = { { backend.get(), COUNT * LARGE } };
    buffers held(devices);
    for (uint32_t number = 1; number <= COUNT; number++) {
        CHECK(held.allocate(number, 0, LARGE));
        std::memset(held.find(number, 0, LARGE).data, 1, LARGE);
        held.filled(number, LARGE);
    }
    progress doing;
    doing.request = 7;
    progress_watch watch(doing, true);
    watch.tick(0);
    const double before = large_page_seconds();
    held.computed();
    // how much lies in large pages is not asked here: the answer takes this process as much time as laying does
    double spent = 0;
    for (uint32_t still = 0; spent < ENOUGH; still++) { // minutes, where others want each processor
        CHECK(still < PATIENCE);
        std::this_thread::sleep_for(std::chrono::milliseconds(500)); // looking is work, too
        const double now = large_page_seconds() - before;
        still = now > spent ? 0 : still;
        spent = now;
    }
    CHECK(watch.tick(0).seconds == 1);
}
