// Bytes of messages: a vector whose memory devices can copy from and to by themselves, where that was opened. What it
// grows by is not set to zero, unless a value is given: it is about to be read from somewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace mesh {

// For pieces on their way to and from devices, this memory: page-locked, where a device wants that. Stays as long as
// the process does, and may be opened once
void open_staging(void * memory, size_t size);

// What open_staging() wants for as much as may be under way
extern const size_t STAGING_BYTES;

// Of staging memory, or of any where that has none left
void * take_bytes(size_t size);
void give_bytes(void * memory) noexcept;

template <class Value> struct staged {
    typedef Value value_type;

    staged() = default;
    template <class Other> staged(const staged<Other> &) {}

    Value * allocate(size_t count) { return static_cast<Value *>(take_bytes(count * sizeof(Value))); }
    void deallocate(Value * memory, size_t) noexcept { give_bytes(memory); }
    template <class Other> void construct(Other * at) { ::new (static_cast<void *>(at)) Other; }
    template <class Other, class... Given> void construct(Other * at, Given &&... given) {
        ::new (static_cast<void *>(at)) Other(std::forward<Given>(given)...);
    }
    template <class Other> bool operator==(const staged<Other> &) const { return true; }
    template <class Other> bool operator!=(const staged<Other> &) const { return false; }
};

typedef std::vector<uint8_t, staged<uint8_t>> blob;

} // namespace mesh
