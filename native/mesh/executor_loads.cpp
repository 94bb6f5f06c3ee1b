// What an executor fills from the worker's own files.
#include "executor.h"
#include "names.h"
#include "report.h"

namespace mesh {

namespace {

// What became of weights, for the head and for the parent
struct loaded_weights {
    void add(load_result result, uint64_t size) {
        results.push_back(static_cast<uint8_t>(result));
        if (result == load_result::loaded) {
            count++;
            bytes += size;
        }
    }
    void tell() const {
        if (count > 0) {
            report("loaded " + std::to_string(count) + " " + std::to_string(bytes));
        }
    }

    blob results;
    uint64_t count = 0;
    uint64_t bytes = 0;
};

} // namespace

void executor::load(uint64_t id, reader & in) {
    if (in.size() % wire_load_entry::bytes != 0) {
        throw bad_message("LOAD of a part of an entry");
    }
    settle();
    std::vector<wanted_weights> wanted;
    while (in.size() > 0) {
        const auto entry = wire_load_entry::take(in);
        wanted_weights one;
        if (!type_of_number(entry.type, one.type)) {
            throw bad_message("LOAD of a type that this release of ggml does not have");
        }
        one.target = memory.find(entry.buffer, entry.offset, entry.size);
        recent.changed(one.target, entry.size);
        memory.filled(entry.buffer, entry.size);
        one.size = entry.size;
        std::memcpy(one.hash.data(), entry.hash, sizeof entry.hash);
        wanted.push_back(one);
    }
    files.fill(wanted, doing);
    loaded_weights loaded;
    for (const auto & one : wanted) {
        loaded.add(one.result, one.size);
    }
    loaded.tell();
    answer(message::loaded, id, std::move(loaded.results));
}

// Throws bad_message for what does not lie within its buffer or its tensor
wanted_part executor::take_part(reader & in) {
    const auto from = wire_load_part::take(in);
    wanted_part part;
    if (!type_of_number(from.type, part.whole.type)) {
        throw bad_message("LOAD_PARTS of a type that this release of ggml does not have");
    }
    // by division: no product may overflow
    const auto are_within = [&](uint64_t first, uint64_t stride, uint64_t size) {
        return from.piece > 0 && from.count > 0 && stride >= from.piece && first <= size &&
               from.piece <= size - first && from.count - 1 <= (size - first - from.piece) / stride;
    };
    if (!are_within(from.offset, from.stride, memory.size_of(from.buffer)) ||
        !are_within(from.first, from.file_stride, from.whole)) {
        throw bad_message("LOAD_PARTS of more than there is");
    }
    part.first = from.first;
    part.piece = from.piece;
    part.count = from.count;
    part.stride = from.stride;
    part.file_stride = from.file_stride;
    part.whole.size = from.whole;
    part.whole.target = memory.find(from.buffer, from.offset, part.span());
    std::memcpy(part.whole.hash.data(), from.hash, sizeof from.hash);
    recent.changed(part.whole.target, part.span());
    memory.filled(from.buffer, part.span());
    return part;
}

void executor::load_parts(uint64_t id, reader & in) {
    if (in.size() % wire_load_part::bytes != 0) {
        throw bad_message("LOAD_PARTS of a part of an entry");
    }
    settle();
    loaded_weights loaded;
    while (in.size() > 0) {
        wanted_part part = take_part(in);
        files.fill(part, doing);
        loaded.add(part.whole.result, part.piece * part.count);
    }
    loaded.tell();
    answer(message::loaded, id, std::move(loaded.results));
}

} // namespace mesh
