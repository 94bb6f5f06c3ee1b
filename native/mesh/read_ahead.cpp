#include "read_ahead.h"

#if defined(__linux__) && defined(__LP64__)

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <unordered_set>

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mesh {

struct mapping {
    uint64_t first;
    uint64_t size;
    size_t file;
};

// of more, the kernel reads only the beginning: as much as it reads ahead of a file on that disk
static constexpr uint64_t AT_ONCE = 128 << 10;

// nullptr until there are workers: what is mapped before that is none of ours
static std::atomic<const weights_index *> unread{ nullptr };

static struct {
    std::mutex mutex;
    std::vector<mapping> mappings;
    std::unordered_set<const weights_tensor *> remote;
} known;

void keep_unread(const weights_index & index) {
    unread = &index;
}

void note_remote(const weights_tensor & tensor) {
    std::lock_guard<std::mutex> lock(known.mutex);
    known.remote.insert(&tensor);
}

static void want(uint64_t first, uint64_t end) {
    for (uint64_t at = first; at < end; at += AT_ONCE) {
        // fails where the loader has unmapped it, because a device has a copy
        syscall(SYS_madvise, at, std::min(AT_ONCE, end - at), MADV_WILLNEED);
    }
}

void read_the_rest() {
    std::lock_guard<std::mutex> lock(known.mutex);
    const weights_index * index = unread;
    if (index == nullptr || known.remote.empty()) {
        return;
    }
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    for (const auto & tensor : index->tensors) {
        for (const auto & one : known.mappings) {
            if (one.file == tensor.file && known.remote.count(&tensor) == 0) {
                const uint64_t first = (one.first + tensor.offset) / page * page;
                want(first, one.first + tensor.offset + tensor.size);
            }
        }
    }
    known.mappings.clear();
}

// Which file of the index that is, or how many it has
static size_t file_of(const weights_index & index, int descriptor) {
    const auto found = std::find_if(
        index.files.begin(), index.files.end(), [&](const weights_file & file) { return file.unchanged(descriptor); });
    return static_cast<size_t>(found - index.files.begin());
}

void * map_file(void * address, size_t size, int protection, int flags, int descriptor, off_t offset) {
    const weights_index * index = descriptor < 0 || offset != 0 ? nullptr : unread.load();
    const int before = errno;
    const size_t file = index == nullptr ? 0 : file_of(*index, descriptor);
    errno = before;
    const bool ours = index != nullptr && file < index->files.size();
    if (ours) {
        flags &= ~MAP_POPULATE;
    }
    const long got = syscall(SYS_mmap, address, size, protection, flags, descriptor, offset);
    if (ours && got != -1) {
        std::lock_guard<std::mutex> lock(known.mutex);
        known.mappings.push_back({ static_cast<uint64_t>(got), size, file });
    }
    return reinterpret_cast<void *>(got); // -1 is MAP_FAILED
}

static bool is_ours(uint64_t address) {
    if (unread == nullptr) {
        return false;
    }
    std::lock_guard<std::mutex> lock(known.mutex);
    return std::any_of(known.mappings.begin(), known.mappings.end(),
        [&](const mapping & one) { return address >= one.first && address - one.first < one.size; });
}

int advise_memory(void * address, size_t size, int advice) {
    // the kernel's advice of the same name as POSIX_MADV_DONTNEED loses data, so libc does nothing, too
    if (advice == POSIX_MADV_DONTNEED ||
        (advice == POSIX_MADV_WILLNEED && is_ours(reinterpret_cast<uint64_t>(address)))) {
        return 0;
    }
    const int before = errno;
    const int failed = syscall(SYS_madvise, address, size, advice) == 0 ? 0 : errno;
    errno = before;
    return failed;
}

} // namespace mesh

#else

namespace mesh {

void keep_unread(const weights_index &) {}

void note_remote(const weights_tensor &) {}

void read_the_rest() {}

} // namespace mesh

#endif
