#include "head_weights.h"

#include "mapped_region.h"
#include "names.h"
#include "printable.h"
#include "read_ahead.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <iterator>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace mesh {

mapped_files::~mapped_files() {
    for (const auto & one : descriptors) {
        close(one.second);
    }
}

const mapped_files::mapping * mapped_files::mapping_at(uint64_t address, uint64_t & first) const {
    auto found = mappings.upper_bound(address);
    if (found == mappings.begin()) {
        return nullptr;
    }
    --found;
    first = found->first;
    return address < found->second.end ? &found->second : nullptr;
}

// As mapping_at(), of what was mapped meanwhile as well
const mapped_files::mapping * mapped_files::mapping_of(uint64_t address, uint64_t & first) {
    if (index.files.empty()) {
        return nullptr;
    }
    const mapping * where = mapping_at(address, first);
    return where == nullptr && look(address) ? mapping_at(address, first) : where;
}

const weights_tensor * mapped_files::find_around(const void * data, uint64_t & within) {
    const auto address = reinterpret_cast<uint64_t>(data);
    uint64_t first = 0;
    const mapping * where = mapping_of(address, first);
    return where == nullptr ? nullptr : index.around(where->file, address - first + where->offset, within);
}

const weights_tensor * mapped_files::find(const void * data) {
    const auto address = reinterpret_cast<uint64_t>(data);
    uint64_t first = 0;
    const mapping * where = mapping_of(address, first);
    return where == nullptr ? nullptr : index.at(where->file, address - first + where->offset);
}

// false: there is none of our files
bool mapped_files::look(uint64_t address) {
    mapped_region region;
    mapping found = {};
    if (!find_mapped(address, region)) {
        return false;
    }
    const int opened = open_file(region.path.c_str(), region.inode, found.file);
    if (opened < 0) {
        return false;
    }
    if (!descriptors.emplace(found.file, opened).second) {
        close(opened);
    }
    found.end = region.end;
    found.offset = region.offset;
    // what was at these addresses before is gone
    auto old = mappings.lower_bound(region.end);
    while (old != mappings.begin() && std::prev(old)->second.end > region.first) {
        old = mappings.erase(std::prev(old));
    }
    mappings.emplace(region.first, found);
    return true;
}

// The file of the index that this is, opened; what is read through it later is what the index speaks of
int mapped_files::open_file(const char * path, uint64_t inode, uint32_t & file) const {
    for (size_t i = 0; i < index.files.size(); i++) {
        if (index.files[i].inode != inode) {
            continue;
        }
        const int opened = open(path, O_RDONLY | O_CLOEXEC);
        if (index.files[i].unchanged(opened)) {
            file = static_cast<uint32_t>(i);
            return opened;
        }
        if (opened >= 0) {
            close(opened);
        }
    }
    return -1;
}

int mapped_files::descriptor(uint32_t file) const {
    const auto found = descriptors.find(file);
    return found == descriptors.end() ? -1 : found->second;
}

bool mapped_files::unchanged() const {
    return std::all_of(descriptors.begin(), descriptors.end(),
        [&](const auto & one) { return index.files[one.first].unchanged(one.second); });
}

// a worker that reads so much is given as long as a slow disk takes, and no longer
static constexpr uint64_t LOAD_BYTES = 512ull << 20;

bool weights_loading::take(uint32_t buffer, uint64_t offset, ggml_type type, const void * data, size_t size) {
    std::lock_guard<std::mutex> lock(mutex);
    const weights_tensor * source = files.find(data);
    if (source == nullptr || source->size != size || source->type != static_cast<uint32_t>(type) ||
        number_of_type(type) == NO_NUMBER) {
        return false;
    }
    wire_load_entry entry;
    entry.buffer = buffer;
    entry.type = number_of_type(type);
    entry.offset = offset;
    entry.size = size;
    std::memcpy(entry.hash, source->hash.data(), sizeof entry.hash);
    next.entries.push_back(entry);
    next.sources.push_back(source);
    note_remote(*source);
    next.bytes += size;
    ask_if_full(next);
    return true;
}

// Whether all of the pieces lie within so many bytes, the first one from `first` on
static bool are_within(uint64_t first, const equal_pieces & pieces, uint64_t stride, uint64_t size) {
    return pieces.length > 0 && pieces.count > 0 && first <= size && pieces.length <= size - first &&
           (pieces.count == 1 ||
               (stride >= pieces.length && pieces.count - 1 <= (size - first - pieces.length) / stride));
}

bool weights_loading::take_part(
    uint32_t buffer, uint64_t offset, ggml_type type, const void * data, const equal_pieces & pieces) {
    std::lock_guard<std::mutex> lock(mutex);
    uint64_t within = 0;
    const weights_tensor * source = files.find_around(data, within);
    if (source == nullptr || source->type != static_cast<uint32_t>(type) || number_of_type(type) == NO_NUMBER ||
        !are_within(within, pieces, pieces.data_stride, source->size)) {
        return false;
    }
    wire_load_part part;
    part.buffer = buffer;
    part.type = number_of_type(type);
    part.offset = offset;
    std::memcpy(part.hash, source->hash.data(), sizeof part.hash);
    part.whole = source->size;
    part.first = within;
    part.piece = pieces.length;
    part.count = pieces.count;
    part.stride = pieces.count == 1 ? pieces.length : pieces.stride;
    part.file_stride = pieces.count == 1 ? pieces.length : pieces.data_stride;
    next_parts.parts.push_back(part);
    next_parts.sources.push_back(source);
    note_remote(*source);
    next_parts.bytes += pieces.count == 1 ? pieces.length : source->size; // what has to be read
    ask_if_full(next_parts);
    return true;
}

void weights_loading::ask_if_full(batch & gathered) {
    if (gathered.sources.size() == LOAD_ENTRIES || gathered.bytes >= LOAD_BYTES) {
        ask(gathered);
    }
}

void weights_loading::ask(batch & gathered) {
    if (gathered.sources.empty()) {
        return;
    }
    auto one = std::make_unique<batch>(std::move(gathered));
    gathered = batch();
    one->results.resize(one->sources.size());
    writer out;
    for (const auto & entry : one->entries) {
        entry.put(out);
    }
    for (const auto & part : one->parts) {
        part.put(out);
    }
    const message number = one->parts.empty() ? message::load : message::load_parts;
    one->id = worker.ask(number, out.data, message::loaded, one->results.data(), one->results.size(), one->bytes);
    asked.push_back(std::move(one));
}

void weights_loading::ask_now() {
    std::lock_guard<std::mutex> lock(mutex);
    ask(next);
    ask(next_parts);
}

bool weights_loading::settle() {
    std::lock_guard<std::mutex> lock(mutex);
    ask(next);
    ask(next_parts);
    // where one fails, those behind it are still to be answered, into what they have
    while (!broken && !asked.empty()) {
        const batch & one = *asked.front();
        broken = one.id == 0 || !worker.wait(one.id) || !finish(one);
        if (!broken) {
            asked.pop_front();
        }
    }
    return !broken;
}

bool weights_loading::files_unchanged() {
    std::lock_guard<std::mutex> lock(mutex);
    if (!files.unchanged()) {
        std::fprintf(stderr, "mesh: the model's file changed while it was loaded\n");
        return false;
    }
    return true;
}

bool weights_loading::finish(const batch & done) {
    uint64_t sent = 0;
    for (size_t i = 0; i < done.sources.size(); i++) {
        if (done.results[i] == static_cast<uint8_t>(load_result::loaded)) {
            continue;
        }
        const weights_tensor & source = *done.sources[i];
        if (done.parts.empty()) {
            const auto & entry = done.entries[i];
            if (!write_from_file(entry.buffer, entry.offset, source, 0, entry.size)) {
                return false;
            }
            sent += entry.size;
        } else {
            if (!write_parts(done.parts[i], source)) {
                return false;
            }
            sent += done.parts[i].piece * done.parts[i].count;
        }
    }
    if (sent > 0) {
        std::fprintf(stderr, "mesh: %s lacks weights, %" PRIu64 " bytes are sent\n", worker.name().c_str(), sent);
    }
    return true;
}

bool weights_loading::write_parts(const wire_load_part & part, const weights_tensor & source) {
    for (uint64_t i = 0; i < part.count; i++) {
        const uint64_t first = part.first + i * part.file_stride;
        if (!write_from_file(part.buffer, part.offset + i * part.stride, source, first, part.piece)) {
            return false;
        }
    }
    return true;
}

// So many bytes of the source from `first` on. The mapping may be gone by now: llama.cpp unmaps what it has handed on
bool weights_loading::write_from_file(
    uint32_t buffer, uint64_t offset, const weights_tensor & source, uint64_t first, uint64_t size) {
    blob piece(std::min<uint64_t>(size, PIECE_BYTES));
    for (uint64_t done = 0; done < size;) {
        const size_t wanted = std::min<uint64_t>(piece.size(), size - done);
        const auto where = static_cast<off_t>(source.offset + first + done);
        const ssize_t n = pread(files.descriptor(source.file), piece.data(), wanted, where);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            std::fprintf(stderr, "mesh: `%s` cannot be read from the model's file\n", printable(source.name).c_str());
            return false;
        }
        write_body body;
        body.buffer = buffer;
        body.offset = offset + done;
        if (!worker.send(body, piece.data(), static_cast<size_t>(n))) {
            return false;
        }
        done += static_cast<uint64_t>(n);
    }
    return true;
}

} // namespace mesh
