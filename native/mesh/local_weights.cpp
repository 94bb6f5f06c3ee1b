#include "local_weights.h"

#include "tensor_range.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include <unistd.h>

namespace mesh {

// what is held of a file at once on the way to a device that cannot be read into
static constexpr uint64_t CHUNK = 4 * 1024 * 1024;

// so many are on the way at once: the file does not wait for the device, nor the device for the file
static constexpr size_t READERS = 4;

static bool read_all(int descriptor, uint8_t * target, uint64_t size, uint64_t first) {
    for (uint64_t done = 0; done < size;) {
        const ssize_t n = pread(descriptor, target + done, size - done, static_cast<off_t>(first + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return false;
        }
        done += static_cast<uint64_t>(n);
    }
    return true;
}

void local_weights::fill(std::vector<wanted_weights> & all, progress & doing) const {
    std::vector<wanted_weights *> wanted;
    for (auto & one : all) {
        if (choose(one)) {
            wanted.push_back(&one);
        }
    }
    while (!wanted.empty()) {
        read(wanted, doing);
        std::vector<wanted_weights *> again;
        for (auto * one : wanted) {
            const weights_file & file = index.files[one->source->file];
            if (one->result == load_result::loaded && !file.unchanged(file.descriptor)) {
                one->result = load_result::file_changed;
            }
            if (one->result != load_result::loaded && choose(*one)) {
                again.push_back(one);
            }
        }
        wanted = again;
    }
    for (auto & one : all) { // what the head has not named by its hash may be there
        if (one.result != load_result::loaded && one.source != nullptr) {
            tensor_range(one.target, one.size).clear();
        }
    }
}

void local_weights::fill(wanted_part & part, progress & doing) const {
    wanted_weights & whole = part.whole;
    while (choose(whole)) {
        const weights_file & file = index.files[whole.source->file];
        const bool done = read_parts(part, doing);
        if (done && file.unchanged(file.descriptor)) {
            return;
        }
        whole.result = done ? load_result::file_changed : load_result::unreadable;
    }
    if (whole.source != nullptr) { // as above
        tensor_range(whole.target, part.span()).clear();
    }
}

// A piece in parts, if it is long; else whole stretches of the file, of which what others have is dropped: a disk reads
// more than a short piece anyway
bool local_weights::read_parts(const wanted_part & part, progress & doing) const {
    const bool is_long = part.piece > CHUNK;
    for (uint64_t i = 0; i < part.count && is_long; i++) {
        for (uint64_t done = 0; done < part.piece; done += CHUNK) {
            wanted_part stretch = part;
            stretch.first += i * part.file_stride + done;
            stretch.piece = std::min(CHUNK, part.piece - done);
            stretch.count = 1;
            if (!read_stretches(stretch, i * part.stride + done, doing)) {
                return false;
            }
        }
    }
    return is_long || read_stretches(part, 0, doing);
}

// Of pieces that are no longer than CHUNK; how far apart they are does not decide what is held
bool local_weights::read_stretches(const wanted_part & part, uint64_t at, progress & doing) const {
    const wanted_weights & whole = part.whole;
    const int descriptor = index.files[whole.source->file].descriptor;
    const bool is_dense = part.stride == part.piece;
    const uint64_t at_once = std::min(std::max<uint64_t>(CHUNK / part.file_stride, 1), part.count);
    blob staging((at_once - 1) * part.file_stride + part.piece);
    tensor_range target(whole.target, at + part.span());
    for (uint64_t done = 0; done < part.count; done += at_once) {
        const uint64_t count = std::min(at_once, part.count - done);
        const uint64_t size = (count - 1) * part.file_stride + part.piece;
        const uint64_t first = whole.source->offset + part.first + done * part.file_stride;
        if (!read_all(descriptor, staging.data(), size, first)) {
            return false;
        }
        for (uint64_t i = 1; i < count && is_dense; i++) {
            std::memmove(staging.data() + i * part.piece, staging.data() + i * part.file_stride, part.piece);
        }
        for (uint64_t i = 0; i < (is_dense ? 1 : count); i++) {
            const uint64_t bytes = is_dense ? count * part.piece : part.piece;
            target.write(staging.data() + i * part.file_stride, at + (done + i) * part.stride, bytes);
        }
        doing.steps++;
    }
    return true;
}

// Where to read from: the same content may lie in several files, and the first one that can be read will do. false:
// nowhere (else), and the result is why the last one would not.
bool local_weights::choose(wanted_weights & one) const {
    const auto & places = index.with_hash(one.hash);
    while (one.tried < places.size()) {
        const weights_tensor & source = index.tensors[places[one.tried++]];
        const weights_file & file = index.files[source.file];
        if (source.type != static_cast<uint32_t>(one.type) || source.size != one.size) {
            one.result = load_result::type_or_size_differs;
        } else if (file.descriptor < 0) {
            one.result = load_result::unreadable;
        } else if (!file.unchanged(file.descriptor)) {
            one.result = load_result::file_changed;
        } else {
            one.result = load_result::loaded;
            one.source = &source;
            return true;
        }
    }
    return false;
}

void local_weights::read(const std::vector<wanted_weights *> & all, progress & doing) const {
    std::mutex mutex;
    size_t at = 0;
    uint64_t first = 0;
    uint64_t total = 0;
    for (const auto * one : all) {
        total += one->size;
    }
    // pieces are taken in order, which is mostly that of the file: a disk that turns has not far to go
    auto work = [&](uint8_t * staging) {
        std::unique_lock<std::mutex> lock(mutex);
        while (at < all.size()) {
            auto & one = *all[at];
            const uint64_t piece = first;
            first += CHUNK;
            if (first >= one.size) {
                at++;
                first = 0;
            }
            lock.unlock();
            const bool done = read_piece(one, piece, staging);
            doing.steps++;
            lock.lock();
            if (!done) {
                one.result = load_result::unreadable;
            }
        }
    };
    const auto count = static_cast<size_t>(std::min<uint64_t>(READERS, total / CHUNK + 1));
    std::vector<blob> staging;
    for (size_t i = 0; i < count; i++) {
        staging.emplace_back(CHUNK); // takes no memory until it is written to
    }
    std::vector<std::thread> others;
    try {
        for (size_t i = 1; i < count; i++) {
            others.emplace_back(work, staging[i].data());
        }
    } catch (const std::system_error &) {
        // fewer will do
    }
    work(staging[0].data());
    for (auto & other : others) {
        other.join();
    }
}

bool local_weights::read_piece(const wanted_weights & one, uint64_t first, uint8_t * staging) const {
    const int descriptor = index.files[one.source->file].descriptor;
    const uint64_t size = std::min(one.size - first, CHUNK);
    const bool direct = ggml_backend_buffer_is_host(one.target.buffer);
    uint8_t * target = direct ? one.target.data + first : staging;
    if (!read_all(descriptor, target, size, one.source->offset + first)) {
        return false;
    }
    if (!direct) {
        tensor_range(one.target, one.size).write(staging, first, size);
    }
    return true;
}

} // namespace mesh
