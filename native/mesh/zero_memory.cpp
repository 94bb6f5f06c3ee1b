#include "zero_memory.h"

#include <cstring>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace mesh {

zero_memory::zero_memory(size_t size) :
    begin(mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), size(size) {
    if (begin == MAP_FAILED) {
        throw std::bad_alloc();
    }
}

zero_memory::~zero_memory() {
    munmap(begin, size);
}

// Whole pages that are private and anonymous: zero when they are touched next (madvise(2)). Elsewhere than on Linux
// the call is no more than a hint
static bool give_back(uint8_t * from, size_t count) {
#ifdef __linux__
    return count == 0 || madvise(from, count, MADV_DONTNEED) == 0; // fails where memory is locked
#else
    (void) from;
    (void) count;
    return false;
#endif
}

void zero_memory::clear(size_t offset, size_t count) {
    static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
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
