#include "neighbour_arrivals.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

namespace mesh {

static constexpr uint32_t NEIGHBOUR = 1;
static constexpr uint32_t COMPLETE = 2;
static constexpr uint32_t LOCAL_NEIGHBOUR = 3;
static constexpr uint32_t SEALED_NEIGHBOUR = 4;
static constexpr char ENDED_WITHIN[] = "it ended within a message";
static constexpr size_t CONTROL_BYTES = 256; // of descriptors that come at once, most of which are too many

// One message, and what came with it: closed unless somebody takes it over
struct arrival {
    arrival() = default;
    arrival(const arrival &) = delete;
    arrival & operator=(const arrival &) = delete;
    ~arrival() {
        for (const int one : descriptors) {
            close(one);
        }
    }

    uint8_t bytes[8];
    std::vector<int> descriptors;
};

static void keep_descriptors(msghdr & said, const char * end, arrival & all) {
    for (cmsghdr * part = CMSG_FIRSTHDR(&said); part != nullptr; part = CMSG_NXTHDR(&said, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        const auto * data = reinterpret_cast<const char *>(CMSG_DATA(part));
        // macOS gives the length that there would have been without a limit
        const size_t size = std::min<size_t>(part->cmsg_len - CMSG_LEN(0), static_cast<size_t>(end - data));
        for (size_t at = 0; at + sizeof(int) <= size; at += sizeof(int)) {
            int one;
            std::memcpy(&one, data + at, sizeof one);
            fcntl(one, F_SETFD, FD_CLOEXEC); // macOS has no flag for recvmsg
            all.descriptors.push_back(one);
        }
    }
}

// Fills `bytes`, and keeps what comes with them. false: the parent has closed its end before the first of them
static bool receive(int socket, uint8_t * bytes, size_t size, arrival & all) {
    size_t done = 0;
    while (done < size) {
        alignas(cmsghdr) char control[CONTROL_BYTES];
        iovec part = { bytes + done, size - done };
        msghdr said = {};
        said.msg_iov = &part;
        said.msg_iovlen = 1;
        said.msg_control = control;
        said.msg_controllen = sizeof control;
        const ssize_t n = recvmsg(socket, &said, 0);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            throw std::runtime_error(std::strerror(errno));
        }
        keep_descriptors(said, control + sizeof control, all);
        if ((said.msg_flags & MSG_CTRUNC) != 0) {
            throw std::runtime_error("a message has more than one descriptor");
        }
        if (n == 0 && done > 0) {
            throw std::runtime_error(ENDED_WITHIN);
        }
        if (n == 0) {
            return false;
        }
        done += static_cast<size_t>(n);
    }
    return true;
}

static std::shared_ptr<const sealing_keys> receive_keys(int socket, arrival & all) {
    auto keys = std::make_shared<sealing_keys>();
    if (!receive(socket, keys->sending.data(), keys->sending.size(), all) ||
        !receive(socket, keys->receiving.data(), keys->receiving.size(), all)) {
        throw std::runtime_error(ENDED_WITHIN);
    }
    return keys;
}

static bool is_stream(int descriptor) {
    int type = 0;
    socklen_t size = sizeof type;
    return getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

arrivals::arrivals(int socket, neighbours & others, std::function<void(const std::string &)> wrong) :
    socket(socket), others(others), wrong(std::move(wrong)), reading([this] { read(); }) {}

arrivals::~arrivals() {
    ended = true;
    shutdown(socket, SHUT_RDWR);
    reading.join();
    close(socket);
}

void arrivals::read() {
    try {
        while (read_one()) {
        }
        others.complete();
    } catch (const std::exception & error) {
        if (!ended) {
            wrong(error.what());
        }
    }
}

bool arrivals::read_one() {
    arrival one;
    if (!receive(socket, one.bytes, sizeof one.bytes, one)) {
        return false;
    }
    reader in(one.bytes, sizeof one.bytes);
    uint32_t kind;
    uint32_t number;
    in.take(kind);
    in.take(number);
    if (kind < NEIGHBOUR || kind > SEALED_NEIGHBOUR) {
        throw std::runtime_error("there is no message " + std::to_string(kind));
    }
    const auto keys = kind == SEALED_NEIGHBOUR ? receive_keys(socket, one) : nullptr;
    if (keys != nullptr && !can_seal()) {
        throw std::runtime_error(CANNOT_SEAL);
    }
    const size_t wanted = kind == COMPLETE ? 0 : 1;
    if (one.descriptors.size() != wanted) {
        throw std::runtime_error("message " + std::to_string(kind) + " has " + std::to_string(one.descriptors.size()) +
                                 " descriptors instead of " + std::to_string(wanted));
    }
    if (kind == COMPLETE && number != 0) {
        throw std::runtime_error("the last message has the number " + std::to_string(number));
    }
    if (kind == COMPLETE) {
        return false;
    }
    if (!is_stream(one.descriptors[0])) {
        throw std::runtime_error("neighbour " + std::to_string(number) + " is no stream socket");
    }
    const int connection = one.descriptors[0];
    one.descriptors.clear();
    others.add({ number, connection, kind == LOCAL_NEIGHBOUR || kind == SEALED_NEIGHBOUR, keys });
    return true;
}

} // namespace mesh
