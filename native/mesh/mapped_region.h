// Which part of which file this process has mapped at an address. The only place that knows how a system says so.
#pragma once

#include <cstdint>
#include <string>

namespace mesh {

struct mapped_region {
    uint64_t first; // address
    uint64_t end;
    uint64_t offset; // in the file, of what lies at `first`
    uint64_t inode;
    std::string path; // when it was mapped: another file may be there now
};

// false: there is no file, or the system does not say
bool find_mapped(uint64_t address, mapped_region & found);

} // namespace mesh
