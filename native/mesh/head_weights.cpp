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

const weights_tensor * mapped_files::find(const void * data) {
    if (index.files.empty()) {
        return nullptr;
    }
    const auto address = reinterpret_cast<uint64_t>(data);
    uint64_t first = 0;
    const mapping * where = mapping_at(address, first);
    if (where == nullptr && look(address)) {
        where = mapping_at(address, first);
    }
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
    if (next.entries.size() == LOAD_ENTRIES || next.bytes >= LOAD_BYTES) {
        ask();
    }
    return true;
}

void weights_loading::ask() {
    if (next.entries.empty()) {
        return;
    }
    auto one = std::make_unique<batch>(std::move(next));
    next = batch();
    one->results.resize(one->entries.size());
    writer out;
    for (const auto & entry : one->entries) {
        entry.put(out);
    }
    one->id =
        worker.ask(message::load, out.data, message::loaded, one->results.data(), one->results.size(), one->bytes);
    asked.push_back(std::move(one));
}

void weights_loading::ask_now() {
    std::lock_guard<std::mutex> lock(mutex);
    ask();
}

bool weights_loading::settle() {
    std::lock_guard<std::mutex> lock(mutex);
    ask();
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
    for (size_t i = 0; i < done.entries.size(); i++) {
        if (done.results[i] == static_cast<uint8_t>(load_result::loaded)) {
            continue;
        }
        if (!write_from_file(done.entries[i], *done.sources[i])) {
            return false;
        }
        sent += done.entries[i].size;
    }
    if (sent > 0) {
        std::fprintf(stderr, "mesh: %s lacks weights, %" PRIu64 " bytes are sent\n", worker.name().c_str(), sent);
    }
    return true;
}

// The mapping may be gone by now: llama.cpp unmaps what it has handed on
bool weights_loading::write_from_file(const wire_load_entry & entry, const weights_tensor & source) {
    blob piece(std::min<uint64_t>(entry.size, PIECE_BYTES));
    for (uint64_t done = 0; done < entry.size;) {
        const size_t wanted = std::min<uint64_t>(piece.size(), entry.size - done);
        const ssize_t n =
            pread(files.descriptor(source.file), piece.data(), wanted, static_cast<off_t>(source.offset + done));
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            std::fprintf(stderr, "mesh: `%s` cannot be read from the model's file\n", printable(source.name).c_str());
            return false;
        }
        write_body body;
        body.buffer = entry.buffer;
        body.offset = entry.offset + done;
        if (!worker.send(body, piece.data(), static_cast<size_t>(n))) {
            return false;
        }
        done += static_cast<uint64_t>(n);
    }
    return true;
}

} // namespace mesh
