// Memory that is zero until it is written, and again when it is cleared.
#include "buffers.h"
#include "check.h"
#include "zero_memory.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <new>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace mesh;

static const auto PAGE = static_cast<size_t>(sysconf(_SC_PAGESIZE));
static constexpr size_t PAGES = 8;

TEST(memory_is_zero_where_it_was_cleared_and_nowhere_else) {
    const size_t size = PAGES * PAGE;
    for (const size_t offset : { size_t(0), size_t(1), PAGE - 1, PAGE, PAGE + 7 }) {
        for (const size_t count : { size_t(0), size_t(1), PAGE - 1, PAGE, 2 * PAGE, 3 * PAGE + 5, size - offset }) {
            zero_memory memory(size);
            uint8_t * data = memory.data();
            CHECK(std::all_of(data, data + size, [](uint8_t byte) { return byte == 0; }));
            std::memset(data, 7, size);
            memory.clear(offset, count);
            for (size_t i = 0; i < size; i++) {
                CHECK(data[i] == (i >= offset && i < offset + count ? 0 : 7));
            }
        }
    }
}

TEST(what_there_is_no_memory_for_is_refused) {
    for (const size_t size : { size_t(1) << 62, SIZE_MAX, SIZE_MAX - 2 * PAGE }) {
        bool refused = false;
        try {
            zero_memory memory(size);
        } catch (const std::bad_alloc &) {
            refused = true;
        }
        CHECK(refused);
    }
}

TEST(what_lies_beyond_it_is_for_nobody) {
    const zero_memory memory(PAGE + 1);
    for (const ptrdiff_t at : { static_cast<ptrdiff_t>(2 * PAGE), ptrdiff_t(-1) }) {
        const pid_t child = fork();
        if (child == 0) {
            signal(SIGSEGV, SIG_DFL);
            signal(SIGBUS, SIG_DFL);
            memory.data()[at] = 1;
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    }
}

#ifdef __linux__

static size_t resident(uint8_t * data) {
    unsigned char pages[PAGES];
    CHECK(mincore(data, PAGES * PAGE, pages) == 0);
    return static_cast<size_t>(std::count_if(pages, pages + PAGES, [](unsigned char one) { return (one & 1) != 0; }));
}

TEST(memory_takes_room_where_it_is_written_and_none_when_it_was_cleared) {
    zero_memory memory(PAGES * PAGE);
    CHECK(resident(memory.data()) == 0);
    std::memset(memory.data(), 1, 3 * PAGE);
    CHECK(resident(memory.data()) == 3);
    memory.clear(1, PAGES * PAGE - 1);
    CHECK(resident(memory.data()) == 1); // which has another byte
    CHECK(memory.data()[0] == 1);
}

// A cache that llama.cpp makes, tries and clears
TEST(a_buffer_of_a_cpu_takes_room_where_it_is_written_and_none_when_it_was_cleared) {
    const ggml_backend_ptr backend{ ggml_backend_cpu_init() };
    const std::vector<lent_device> devices = { { backend.get(), PAGES * PAGE } };
    buffers held(devices);
    CHECK(held.allocate(1, 0, PAGES * PAGE));
    uint8_t * data = held.find(1, 0, PAGES * PAGE).data;
    CHECK(resident(data) == 0);
    data[PAGE] = 1;
    CHECK(resident(data) == 1);
    held.clear(1, 0, PAGES * PAGE);
    CHECK(resident(data) == 0 && data[PAGE] == 0);
}

#endif
