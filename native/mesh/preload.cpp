// What a llama-server calls in place of libc's if the module is preloaded (LD_PRELOAD).
#include "read_ahead.h"

#if defined(__linux__) && defined(__LP64__)

#include <sys/mman.h>

#define MESH_INSTEAD extern "C" __attribute__((visibility("default")))

MESH_INSTEAD void * mmap(
    void * address, size_t size, int protection, int flags, int descriptor, off_t offset) noexcept {
    return mesh::map_file(address, size, protection, flags, descriptor, offset);
}

MESH_INSTEAD void * mmap64(
    void * address, size_t size, int protection, int flags, int descriptor, off64_t offset) noexcept {
    return mesh::map_file(address, size, protection, flags, descriptor, offset);
}

MESH_INSTEAD int posix_madvise(void * address, size_t size, int advice) noexcept {
    return mesh::advise_memory(address, size, advice);
}

#endif
