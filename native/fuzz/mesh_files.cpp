#include "mesh_files.h"

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include <sys/stat.h>
#include <unistd.h>

using namespace mesh;

static constexpr uint64_t SIZES[FILE_TENSORS] = { 600, 4096, 90000 };

static weights_index make() {
    char path[] = "/tmp/mesh-fuzz-XXXXXX";
    const int descriptor = mkstemp(path);
    unlink(path);
    uint64_t size = 0;
    for (const uint64_t one : SIZES) {
        size += one;
    }
    struct stat is = {};
    if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(size)) != 0 || fstat(descriptor, &is) != 0) {
        throw std::runtime_error("no file for the fuzzer");
    }
    const auto ns = [](const timespec & at) { return std::to_string(at.tv_sec * 1000000000ll + at.tv_nsec); };
    std::string text = "meshd-weights 1\nfile 0 " + std::to_string(descriptor) + " " + std::to_string(size) + " " +
                       ns(is.st_mtim) + " " + ns(is.st_ctim) + " " + std::to_string(is.st_ino) + "\n";
    uint64_t offset = 0;
    for (uint32_t i = 0; i < FILE_TENSORS; i++) { // hashes are told, and never computed
        text += "tensor 0 0 " + std::to_string(offset) + " " + std::to_string(SIZES[i]) + " " +
                std::string(64, static_cast<char>('1' + i)) + " tensor\n";
        offset += SIZES[i];
    }
    return weights_index(text + "end\n");
}

const weights_index & indexed_file() {
    static const weights_index index = make();
    return index;
}
