// Which tensors lie where in which files, each with the BLAKE3-256 of its bytes. The parent process makes it, from the
// open descriptors that it also hands over; nothing is hashed here, and no path of it is ever opened. The text is
// described in docs/native-backend.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace mesh {

typedef std::array<uint8_t, 32> weights_hash;

struct weights_file {
    int descriptor; // -1: not handed over
    uint64_t size;
    int64_t mtime_ns;
    int64_t ctime_ns;
    uint64_t inode;

    // Whether what this descriptor has open is the file that was hashed, as far as the file system tells
    bool unchanged(int opened) const;
};

struct weights_tensor {
    uint32_t file;
    uint32_t type; // ggml's number in GGUF files, which does not change
    uint64_t offset;
    uint64_t size;
    weights_hash hash;
    std::string name;
};

class weights_index {
public:
    static constexpr size_t MAX_TEXT = 512u * 1024 * 1024;
    static constexpr size_t MAX_FILES = 4096;
    static constexpr size_t MAX_TENSORS = 1000000;
    static constexpr size_t MAX_NAME = 1024;

    weights_index() = default;
    // Throws std::runtime_error that says which line and why
    explicit weights_index(const std::string & text);

    std::vector<weights_file> files;
    std::vector<weights_tensor> tensors;

    // Numbers of the tensors with this content, empty when there is none
    const std::vector<uint32_t> & with_hash(const weights_hash & hash) const;
    // The tensor that begins there, or nullptr
    const weights_tensor * at(uint32_t file, uint64_t offset) const;
    // The tensor in which this byte lies, `within` bytes from its beginning; or nullptr
    const weights_tensor * around(uint32_t file, uint64_t offset, uint64_t & within) const;

private:
    void parse_line(const std::string & line);
    void parse_file(const std::vector<std::string> & fields);
    void parse_tensor(const std::vector<std::string> & fields);

    struct hash_of_hash {
        size_t operator()(const weights_hash & hash) const;
    };
    std::unordered_map<weights_hash, std::vector<uint32_t>, hash_of_hash> by_hash;
    std::vector<std::map<uint64_t, uint32_t>> by_offset; // one for each file
};

} // namespace mesh
