#include "buffers.h"

#include "tensor_range.h"

#include <algorithm>
#include <new>

namespace mesh {

bool is_cpu(ggml_backend_t backend) {
    return ggml_backend_dev_type(ggml_backend_get_device(backend)) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

buffers::buffers(const std::vector<lent_device> & devices) : devices(devices), held(devices.size()) {}

buffers::~buffers() {
    while (!entries.empty()) {
        free(entries.begin()->first);
    }
}

bool buffers::allocate(uint32_t number, uint32_t device, uint64_t size) {
    if (number == 0 || entries.count(number) != 0 || entries.size() >= BUFFERS || device >= devices.size()) {
        throw bad_message("ALLOCATE names a buffer or a device that it cannot");
    }
    ggml_backend_buffer_type_t type = ggml_backend_get_default_buffer_type(devices[device].backend);
    if (size == 0 || size > devices[device].limit - held[device] || size > ggml_backend_buft_get_max_size(type)) {
        return false;
    }
    entry made = make(type, device, size, most_padding(devices[device].rule));
    if (made.buffer == nullptr) {
        return false;
    }
    held[device] += size;
    entries.emplace(number, std::move(made));
    fresh = true;
    return true;
}

// What kernels read behind a tensor is there, and 0, also where a view ends with the buffer; nothing of whoever had
// this memory before is for the head to read
buffers::entry buffers::make(ggml_backend_buffer_type_t type, uint32_t device, uint64_t size, uint64_t padding) {
    if (type == ggml_backend_cpu_buffer_type()) {
        try {
            auto own = std::make_unique<zero_memory>(size + padding);
            ggml_backend_buffer_t buffer = ggml_backend_cpu_buffer_from_ptr(own->data(), size + padding);
            return { buffer, device, size, std::move(own) };
        } catch (const std::bad_alloc &) {
            return {};
        }
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(type, size + padding);
    if (buffer != nullptr) {
        ggml_backend_buffer_clear(buffer, 0);
    }
    return { buffer, device, size, nullptr };
}

void buffers::free(uint32_t number) {
    const entry & gone = at(number);
    pages.forget(ggml_backend_buffer_get_base(gone.buffer), gone.size);
    ggml_backend_buffer_free(gone.buffer);
    held[gone.device] -= gone.size;
    entries.erase(number);
}

void buffers::filled(uint32_t number, uint64_t size) {
    entry & one = entries.at(number);
    if (!one.counted) {
        one.filled += std::min(size, one.size - one.filled);
    }
}

void buffers::computed() {
    if (!fresh) {
        return;
    }
    fresh = false;
    for (auto & [number, one] : entries) {
        if (!one.counted && one.own != nullptr && one.filled > one.size / 2) {
            pages.add(one.own->data(), one.size);
        }
        one.counted = true;
    }
    pages.start();
}

void buffers::clear(uint32_t number, uint64_t offset, uint64_t size) {
    const place where = find(number, offset, size);
    const entry & one = at(number);
    if (one.own != nullptr) {
        return one.own->clear(offset, size);
    }
    tensor_range bytes(where, size);
    ggml_backend_tensor_memset(bytes.get(), 0, 0, size);
}

const buffers::entry & buffers::at(uint32_t number) const {
    const auto found = entries.find(number);
    if (found == entries.end()) {
        throw bad_message("there is no buffer " + std::to_string(number));
    }
    return found->second;
}

place buffers::find(uint32_t number, uint64_t offset, uint64_t size) const {
    const entry & one = at(number);
    if (offset > one.size || size > one.size - offset) {
        throw bad_message("bytes behind the end of buffer " + std::to_string(number));
    }
    return { one.buffer, static_cast<uint8_t *>(ggml_backend_buffer_get_base(one.buffer)) + offset, one.device };
}

place buffers::find_piece(const char * message, uint32_t number, uint64_t offset, uint64_t size) const {
    if (size > PIECE_BYTES) {
        throw bad_message(std::string(message) + " of more than a piece");
    }
    return find(number, offset, size);
}

uint64_t buffers::size_of(uint32_t number) const {
    return at(number).size;
}

void buffers::memory(uint32_t device, uint64_t & free, uint64_t & total) const {
    size_t device_free = 0;
    size_t device_total = 0;
    ggml_backend_dev_memory(ggml_backend_get_device(devices[device].backend), &device_free, &device_total);
    total = std::min<uint64_t>(device_total, devices[device].limit);
    free = std::min<uint64_t>(device_free, devices[device].limit - held[device]);
}

} // namespace mesh
