// Which file lies at an address, as the system says it.
#include "check.h"
#include "mapped_region.h"

#include <cstdlib>
#include <cstring>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace mesh;

TEST(a_mapped_file_is_found_by_address_and_offset) {
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    char path[] = "/tmp/mesh tests-XXXXXX"; // with a blank in it
    const int file = mkstemp(path);
    CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(3 * page)) == 0);
    void * whole = mmap(nullptr, 3 * page, PROT_READ, MAP_SHARED, file, 0);
    void * end = mmap(nullptr, page, PROT_READ, MAP_SHARED, file, static_cast<off_t>(2 * page));
    CHECK(whole != MAP_FAILED && end != MAP_FAILED);
    struct stat is = {};
    CHECK(fstat(file, &is) == 0);
    mapped_region found;
    const auto first = reinterpret_cast<uint64_t>(whole);
    CHECK(find_mapped(first + 2 * page + 1, found));
    CHECK(found.first <= first && found.end >= first + 3 * page && found.offset + (first - found.first) == 0);
    CHECK(found.inode == is.st_ino);
    char real[4096];
    CHECK(found.path == path || (realpath(path, real) != nullptr && found.path == real)); // /tmp is a link on macOS
    const auto last = reinterpret_cast<uint64_t>(end);
    CHECK(find_mapped(last, found) && found.offset + (last - found.first) == 2 * page);
    munmap(end, page);
    CHECK(!find_mapped(last, found) || found.inode != is.st_ino);
    munmap(whole, 3 * page);
    close(file);
    unlink(path);
}

TEST(memory_without_a_file_is_no_region) {
    const std::string on_the_heap(1 << 20, 'x');
    mapped_region found;
    CHECK(!find_mapped(reinterpret_cast<uint64_t>(on_the_heap.data()), found));
    CHECK(!find_mapped(0, found));
    CHECK(!find_mapped(UINT64_MAX, found));
}
