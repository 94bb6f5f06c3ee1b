// Memory of this process that is zero until it is written: pages come when they are used, so that a cache of which
// little is used costs neither the time in which all of it would be cleared nor the memory. What reads or writes far
// beyond it ends the process, and finds nothing of others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mesh {

class zero_memory {
public:
    // Throws std::bad_alloc
    explicit zero_memory(size_t size);
    ~zero_memory();
    zero_memory(const zero_memory &) = delete;
    zero_memory & operator=(const zero_memory &) = delete;

    uint8_t * data() const;

    // Zero again; nobody else is at work there. Where the system can, its pages go back to it
    void clear(size_t offset, size_t count);

private:
    void * begin;
    const size_t size;
};

} // namespace mesh
