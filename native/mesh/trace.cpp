#include "trace.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace mesh {

// Once for each process, which keeps it for as long as it is
static int open_file() {
    const char * folder = std::getenv("GGML_MESH_TRACE");
    if (folder == nullptr || *folder == '\0') {
        return -1;
    }
    const std::string name = std::string(folder) + '/' + std::to_string(getpid());
    const int file = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) {
        std::fprintf(stderr, "mesh: no trace can be written to %s\n", name.c_str());
    }
    return file;
}

static int file() {
    static const int opened = open_file();
    return opened;
}

// The same in all processes of a machine
static uint64_t now() {
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

traced::traced(const char * what, uint32_t number) : what(what), number(number), began(file() < 0 ? 0 : now()) {}

void traced::end() {
    trace_end(what, number, leave());
}

uint64_t traced::leave() {
    const uint64_t then = began;
    began = 0;
    return then;
}

void trace_end(const char * what, uint32_t number, uint64_t began) {
    if (began == 0) {
        return;
    }
    char line[128];
    const int size = std::snprintf(line, sizeof line, "%s %u %" PRIu64 " %" PRIu64 "\n", what, number, began, now());
    if (size < 0 || write(file(), line, static_cast<size_t>(size)) < 0) {
        return; // the disk is full: a trace is no reason to fail
    }
}

} // namespace mesh
