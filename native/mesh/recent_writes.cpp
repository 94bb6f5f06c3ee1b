#include "recent_writes.h"

#include <algorithm>

namespace mesh {

static constexpr uint64_t LONGEST = 256 * 1024;
static constexpr size_t HELD_BYTES = 4 * 1024 * 1024;
static constexpr size_t ENTRIES = 256;

void recent_writes::wrote(const place & where, const uint8_t * data, uint64_t size) {
    changed(where, size);
    if (size > LONGEST) {
        return;
    }
    held += size;
    entries.push_back({ where.buffer, where.data, blob(data, data + size) });
    while (entries.size() > ENTRIES || held > HELD_BYTES) {
        held -= entries.front().data.size();
        entries.pop_front();
    }
}

void recent_writes::changed(const place & where, uint64_t size) {
    const auto overlaps = [&](const entry & one) {
        return one.buffer == where.buffer && one.first < where.data + size && where.data < one.first + one.data.size();
    };
    for (const auto & one : entries) {
        held -= overlaps(one) ? one.data.size() : 0;
    }
    entries.erase(std::remove_if(entries.begin(), entries.end(), overlaps), entries.end());
}

void recent_writes::clear() {
    entries.clear();
    held = 0;
}

const uint8_t * recent_writes::find(ggml_backend_buffer_t buffer, const void * first, uint64_t size) const {
    const auto * at = static_cast<const uint8_t *>(first);
    for (const auto & one : entries) {
        if (one.buffer == buffer && at >= one.first && size <= one.data.size() &&
            static_cast<uint64_t>(at - one.first) <= one.data.size() - size) {
            return one.data.data() + (at - one.first);
        }
    }
    return nullptr;
}

} // namespace mesh
