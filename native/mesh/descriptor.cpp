#include "descriptor.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace mesh {

// the parent has everything ready when it starts us, or writes it right after
static constexpr int READ_DEADLINE_MS = 30000;

bool parse_descriptor(const std::string & text, int & descriptor) {
    char * end = nullptr;
    const long value = std::strtol(text.c_str(), &end, 10);
    descriptor = static_cast<int>(value);
    return !text.empty() && *end == '\0' && value >= 3 && value < 1 << 20 &&
           fcntl(descriptor, F_SETFD, FD_CLOEXEC) == 0;
}

static std::string read_to_end(int descriptor, size_t most) {
    std::string text;
    char chunk[65536];
    for (;;) {
        pollfd waiting = { descriptor, POLLIN, 0 };
        if (poll(&waiting, 1, READ_DEADLINE_MS) == 0) {
            throw std::runtime_error("nothing came for too long");
        }
        const ssize_t n = read(descriptor, chunk, sizeof chunk);
        if (n == 0) {
            return text;
        }
        if (n < 0 && errno != EINTR && errno != EAGAIN) {
            throw std::runtime_error(std::strerror(errno));
        }
        text.append(chunk, n > 0 ? static_cast<size_t>(n) : 0);
        if (text.size() > most) {
            throw std::runtime_error("more than " + std::to_string(most) + " bytes");
        }
    }
}

std::string read_text(int descriptor, size_t most) {
    try {
        std::string text = read_to_end(descriptor, most);
        close(descriptor);
        return text;
    } catch (...) {
        close(descriptor);
        throw;
    }
}

} // namespace mesh
