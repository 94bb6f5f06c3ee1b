// The buffers of one head on a worker's devices: by the head's numbers, within each device's limit of memory.
#pragma once

#include "large_pages.h"
#include "protocol.h"
#include "sizes.h"
#include "zero_memory.h"

#include "ggml-backend.h"

#include <memory>
#include <unordered_map>

namespace mesh {

// A device that a worker lends
struct lent_device {
    ggml_backend_t backend;
    uint64_t limit; // bytes that a head may hold
    size_rule rule = {};
    int threads = 1; // of a CPU
};

bool is_cpu(ggml_backend_t backend);

// Bytes of a device: where they are for ggml
struct place {
    ggml_backend_buffer_t buffer;
    uint8_t * data;
    uint32_t device = 0;
};

class buffers {
public:
    explicit buffers(const std::vector<lent_device> & devices);
    ~buffers();
    buffers(const buffers &) = delete;
    buffers & operator=(const buffers &) = delete;

    // false: there is no memory for it. All of these throw bad_message for numbers and places that there are not
    bool allocate(uint32_t number, uint32_t device, uint64_t size);
    void free(uint32_t number);
    place find(uint32_t number, uint64_t offset, uint64_t size) const;
    // The same for what `message` moves at once: bad_message as well for more than a piece
    place find_piece(const char * message, uint32_t number, uint64_t offset, uint64_t size) const;
    uint64_t size_of(uint32_t number) const;
    // Zero from now on; no device is at work there
    void clear(uint32_t number, uint64_t offset, uint64_t size);

    // So many bytes of it were set to something. Then something has been computed: what lies in this process's memory
    // and was filled before that is worth large pages
    void filled(uint32_t number, uint64_t size);
    void computed();

    // What a head may still hold on a device, and could at first; as far as the device has it
    void memory(uint32_t device, uint64_t & free, uint64_t & total) const;

private:
    struct entry {
        ggml_backend_buffer_t buffer;
        uint32_t device;
        uint64_t size;
        std::unique_ptr<zero_memory> own; // of a CPU
        uint64_t filled = 0;              // bytes, before the first computation that it lived to see
        bool counted = false;             // which was
    };
    // What holds so much, all of it zero; its buffer is nullptr where there is no memory
    static entry make(ggml_backend_buffer_type_t type, uint32_t device, uint64_t size, uint64_t padding);
    const entry & at(uint32_t number) const;

    const std::vector<lent_device> & devices;
    std::vector<uint64_t> held; // bytes, of each device
    std::unordered_map<uint32_t, entry> entries;
    bool fresh = false; // something was allocated since the last computation
    large_pages pages;  // of CPUs
};

} // namespace mesh
