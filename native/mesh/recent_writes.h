// What a head wrote last and nothing has changed since: what a graph follows is then looked at before a device has
// even begun with it, and without waiting for it. Short writes only, which indices are.
#pragma once

#include "blob.h"
#include "buffers.h"

#include <deque>

namespace mesh {

class recent_writes {
public:
    void wrote(const place & where, const uint8_t * data, uint64_t size);
    void changed(const place & where, uint64_t size);
    void clear();

    // The bytes there, or nullptr: not all of them are known
    const uint8_t * find(ggml_backend_buffer_t buffer, const void * first, uint64_t size) const;

private:
    struct entry {
        ggml_backend_buffer_t buffer;
        const uint8_t * first;
        blob data;
    };
    std::deque<entry> entries; // oldest first; none overlaps another one
    size_t held = 0;
};

} // namespace mesh
