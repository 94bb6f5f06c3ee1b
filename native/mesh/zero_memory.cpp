#include "zero_memory.h"

#include <cstring>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace mesh {

static size_t page_size() {
    static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

// In whole pages, and one on each side that nobody may touch
static size_t with_guards(size_t size) {
    if (size > SIZE_MAX - 3 * page_size()) {
        throw std::bad_alloc();
    }
    return (size + page_size() - 1) / page_size() * page_size() + 2 * page_size();
}

zero_memory::zero_memory(size_t size) :
    begin(mmap(nullptr, with_guards(size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), size(size) {
    if (begin == MAP_FAILED) {
        throw std::bad_alloc();
    }
    if (mprotect(data(), with_guards(size) - 2 * page_size(), PROT_READ | PROT_WRITE) != 0) {
        munmap(begin, with_guards(size));
        throw std::bad_alloc();
    }
}

zero_memory::~zero_memory() {
    munmap(begin, with_guards(size));
}

uint8_t * zero_memory::data() const {
    return static_cast<uint8_t *>(begin) + page_size();
}

// Whole pages that are private and anonymous: zero when they are touched next (madvise(2)). Elsewhere than on Linux
// the call is no more than a hint
static bool give_back(uint8_t * from, size_t count) {
#ifdef __linux__
    return madvise(from, count, MADV_DONTNEED) == 0; // fails where memory is locked
#else
    (void) from;
    (void) count;
    return false;
#endif
}

void zero_memory::clear(size_t offset, size_t count) {
    const size_t page = page_size();
    const size_t end = offset + count;
    const size_t first = (offset + page - 1) / page * page;
    const size_t last = end / page * page;
    if (first >= last || !give_back(data() + first, last - first)) {
        std::memset(data() + offset, 0, count);
        return;
    }
    std::memset(data() + offset, 0, first - offset);
    std::memset(data() + last, 0, end - last);
}

} // namespace mesh
