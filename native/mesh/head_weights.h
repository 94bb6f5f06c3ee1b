// Weights that a worker fills from its own files: the head has mapped the model's file and is asked to write what lies
// there; it finds file and place of the pointer, asks the worker by content, and never touches the page.
#pragma once

#include "connection.h"
#include "weights_index.h"

#include "ggml.h"

#include <deque>
#include <map>
#include <memory>

namespace mesh {

// The files of the index that this process has mapped
class mapped_files {
public:
    explicit mapped_files(const weights_index & index) : index(index) {}
    ~mapped_files();
    mapped_files(const mapped_files &) = delete;
    mapped_files & operator=(const mapped_files &) = delete;

    // The tensor of the index that lies at data, or nullptr
    const weights_tensor * find(const void * data);
    // The tensor of the index in which it lies, and how many bytes from its beginning; or nullptr
    const weights_tensor * find_around(const void * data, uint64_t & within);

    // The file, opened here; -1: it is not mapped
    int descriptor(uint32_t file) const;

    // Whether all files that were found are still those of the index
    bool unchanged() const;

private:
    struct mapping {
        uint64_t end;
        uint64_t offset;
        uint32_t file;
    };
    const mapping * mapping_of(uint64_t address, uint64_t & first);
    bool look(uint64_t address);
    const mapping * mapping_at(uint64_t address, uint64_t & first) const;
    int open_file(const char * path, uint64_t inode, uint32_t & file) const;

    const weights_index & index;
    std::map<uint64_t, mapping> mappings; // by where they begin
    std::map<uint32_t, int> descriptors;  // of files
};

// Pieces of one length, equally far apart: from the beginning of one to that of the next, there and here
struct equal_pieces {
    uint64_t length;
    uint64_t count;
    uint64_t stride;
    uint64_t data_stride;
};

// What one worker has been asked to load, and has not said yet
class weights_loading {
public:
    weights_loading(connection & worker, const weights_index & index) : worker(worker), files(index) {}

    // false: it has to be written, as ever
    bool take(uint32_t buffer, uint64_t offset, ggml_type type, const void * data, size_t size);

    // The same for a part of a tensor
    bool take_part(uint32_t buffer, uint64_t offset, ggml_type type, const void * data, const equal_pieces & pieces);

    // Asks for all that was taken, and waits for nothing
    void ask_now();

    // Waits for the worker, and writes what it does not have. false: that failed, or the worker is lost
    bool settle();

    bool files_unchanged();

private:
    struct batch {
        std::vector<wire_load_entry> entries; // of LOAD, or else
        std::vector<wire_load_part> parts;    // of LOAD_PARTS
        std::vector<const weights_tensor *> sources;
        blob results;
        uint64_t bytes = 0;
        uint64_t id = 0;
    };
    void ask(batch & gathered);
    void ask_if_full(batch & gathered);
    bool finish(const batch & done);
    bool write_from_file(
        uint32_t buffer, uint64_t offset, const weights_tensor & source, uint64_t first, uint64_t size);
    bool write_parts(const wire_load_part & part, const weights_tensor & source);

    connection & worker;
    mapped_files files;
    std::mutex mutex;
    batch next;
    batch next_parts;
    std::deque<std::unique_ptr<batch>> asked; // none is moved or goes while its answer may come
    bool broken = false;
};

} // namespace mesh
