#include "weights_index.h"

#include <cstring>
#include <stdexcept>

#include <sys/stat.h>

#ifdef __APPLE__
#define TIME_NS(st, which) ((int64_t) (st).st_##which##timespec.tv_sec * 1000000000 + (st).st_##which##timespec.tv_nsec)
#else
#define TIME_NS(st, which) ((int64_t) (st).st_##which##tim.tv_sec * 1000000000 + (st).st_##which##tim.tv_nsec)
#endif

namespace mesh {

bool weights_file::unchanged(int opened) const {
    struct stat st;
    return opened >= 0 && fstat(opened, &st) == 0 && S_ISREG(st.st_mode) && static_cast<uint64_t>(st.st_size) == size &&
           static_cast<uint64_t>(st.st_ino) == inode && TIME_NS(st, m) == mtime_ns && TIME_NS(st, c) == ctime_ns;
}

size_t weights_index::hash_of_hash::operator()(const weights_hash & hash) const {
    size_t result;
    std::memcpy(&result, hash.data(), sizeof result);
    return result;
}

const std::vector<uint32_t> & weights_index::with_hash(const weights_hash & hash) const {
    static const std::vector<uint32_t> none;
    const auto found = by_hash.find(hash);
    return found == by_hash.end() ? none : found->second;
}

const weights_tensor * weights_index::at(uint32_t file, uint64_t offset) const {
    if (file >= by_offset.size()) {
        return nullptr;
    }
    const auto found = by_offset[file].find(offset);
    return found == by_offset[file].end() ? nullptr : &tensors[found->second];
}

const weights_tensor * weights_index::around(uint32_t file, uint64_t offset, uint64_t & within) const {
    if (file >= by_offset.size()) {
        return nullptr;
    }
    const auto behind = by_offset[file].upper_bound(offset);
    if (behind == by_offset[file].begin()) {
        return nullptr;
    }
    const weights_tensor & found = tensors[std::prev(behind)->second];
    within = offset - found.offset;
    return within < found.size ? &found : nullptr;
}

static std::runtime_error wrong(const std::string & what) {
    return std::runtime_error(what);
}

// Decimal digits only, with a sign if the least is negative
template <class Number> static bool parse_number(const std::string & text, Number least, Number most, Number & value) {
    const bool negative = least < 0 && text[0] == '-';
    const size_t first = negative ? 1 : 0;
    if (text.size() == first || text.size() > 20) {
        return false;
    }
    uint64_t digits = 0;
    for (size_t i = first; i < text.size(); i++) {
        const auto digit = static_cast<uint64_t>(text[i] - '0');
        if (text[i] < '0' || text[i] > '9' || digits > (UINT64_MAX - digit) / 10) {
            return false;
        }
        digits = digits * 10 + digit;
    }
    if (negative ? digits > static_cast<uint64_t>(-(least + 1)) + 1 : digits > static_cast<uint64_t>(most)) {
        return false;
    }
    value = static_cast<Number>(negative ? 0 - digits : digits);
    return true;
}

// Splits at single spaces into at most n fields; the last one takes the rest, spaces and all
static std::vector<std::string> split(const std::string & line, size_t n) {
    std::vector<std::string> fields;
    size_t at = 0;
    while (fields.size() + 1 < n) {
        const size_t space = line.find(' ', at);
        if (space == std::string::npos) {
            break;
        }
        fields.push_back(line.substr(at, space - at));
        at = space + 1;
    }
    fields.push_back(line.substr(at));
    return fields;
}

static bool parse_hash(const std::string & text, weights_hash & hash) {
    if (text.size() != 2 * hash.size()) {
        return false;
    }
    for (size_t i = 0; i < text.size(); i++) {
        const char c = text[i];
        const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
        if (digit < 0) {
            return false;
        }
        hash[i / 2] = static_cast<uint8_t>(i % 2 == 0 ? digit << 4 : hash[i / 2] | digit);
    }
    return true;
}

weights_index::weights_index(const std::string & text) {
    size_t number = 0;
    bool ended = false;
    for (size_t at = 0; at < text.size();) {
        number++;
        const std::string where = "line " + std::to_string(number) + ": ";
        const size_t end = text.find('\n', at);
        if (ended || end == std::string::npos || end - at > MAX_NAME + 256) {
            throw wrong(where + (ended ? "there is more after the end" : "too long, or not ended"));
        }
        const std::string line = text.substr(at, end - at);
        at = end + 1;
        if (number == 1) {
            if (line != "meshd-weights 1") {
                throw wrong(where + "not a weights index of version 1");
            }
        } else if (line == "end") {
            ended = true;
        } else {
            try {
                parse_line(line);
            } catch (const std::runtime_error & error) {
                throw wrong(where + error.what());
            }
        }
    }
    if (!ended) {
        throw wrong("the last line is not `end`");
    }
}

void weights_index::parse_line(const std::string & line) {
    if (line.compare(0, 5, "file ") == 0) {
        parse_file(split(line, 8));
    } else if (line.compare(0, 7, "tensor ") == 0) {
        parse_tensor(split(line, 7));
    } else {
        throw wrong("neither a file nor a tensor");
    }
}

void weights_index::parse_file(const std::vector<std::string> & fields) {
    weights_file file;
    uint64_t number;
    if (fields.size() != 7 || !parse_number<uint64_t>(fields[1], 0, UINT64_MAX, number) ||
        !parse_number<int>(fields[2], -1, 1 << 20, file.descriptor) ||
        !parse_number<uint64_t>(fields[3], 0, INT64_MAX, file.size) ||
        !parse_number<int64_t>(fields[4], INT64_MIN, INT64_MAX, file.mtime_ns) ||
        !parse_number<int64_t>(fields[5], INT64_MIN, INT64_MAX, file.ctime_ns) ||
        !parse_number<uint64_t>(fields[6], 0, UINT64_MAX, file.inode) ||
        (file.descriptor < 3 && file.descriptor != -1)) {
        throw wrong("a file has a number, fd, size, two times and an inode");
    }
    if (number != files.size() || files.size() >= MAX_FILES) {
        throw wrong("files are numbered from 0, at most " + std::to_string(MAX_FILES));
    }
    files.push_back(file);
    by_offset.emplace_back();
}

void weights_index::parse_tensor(const std::vector<std::string> & fields) {
    weights_tensor tensor;
    if (fields.size() != 7 || !parse_number<uint32_t>(fields[1], 0, UINT32_MAX, tensor.file) ||
        !parse_number<uint32_t>(fields[2], 0, UINT32_MAX, tensor.type) ||
        !parse_number<uint64_t>(fields[3], 0, UINT64_MAX, tensor.offset) ||
        !parse_number<uint64_t>(fields[4], 0, UINT64_MAX, tensor.size) || !parse_hash(fields[5], tensor.hash)) {
        throw wrong("a tensor has a file, type, offset, size, hash and name");
    }
    tensor.name = fields[6];
    if (tensor.name.empty() || tensor.name.size() > MAX_NAME) {
        throw wrong("the name is empty or too long");
    }
    if (tensor.file >= files.size()) {
        throw wrong("there is no file " + std::to_string(tensor.file));
    }
    const uint64_t file_size = files[tensor.file].size;
    if (tensor.size > file_size || tensor.offset > file_size - tensor.size) {
        throw wrong("tensor `" + tensor.name + "` ends behind its file");
    }
    if (tensors.size() >= MAX_TENSORS) {
        throw wrong("more than " + std::to_string(MAX_TENSORS) + " tensors");
    }
    const auto number = static_cast<uint32_t>(tensors.size());
    if (tensor.size > 0 && !by_offset[tensor.file].emplace(tensor.offset, number).second) {
        throw wrong("tensor `" + tensor.name + "` begins where another one does");
    }
    by_hash[tensor.hash].push_back(number);
    tensors.push_back(std::move(tensor));
}

} // namespace mesh
