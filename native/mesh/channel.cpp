#include "channel.h"

#include <cerrno>

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0 // macOS says it for each socket
#endif

namespace mesh {

static std::string reason(const char * what) {
    return std::string(what) + ": " + std::strerror(errno);
}

channel::channel(int socket, sender other, std::unique_ptr<carrier> by) :
    socket(socket), other(other), by(std::move(by)) {
#ifdef SO_NOSIGPIPE
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
}

channel::~channel() {
    close(socket);
}

void channel::shut() {
    shutdown(socket, SHUT_RDWR);
}

// Until there is something to read, or for so long
static void nap(int socket, lookout::duration most) {
    pollfd arrival = { socket, POLLIN, 0 };
#ifdef __linux__
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec limit = { static_cast<time_t>(seconds.count()), static_cast<long>((most - seconds).count()) };
    ppoll(&arrival, 1, &limit, nullptr);
#else
    // less than a millisecond is polled
    poll(&arrival, 1, static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(most).count()));
#endif
}

ssize_t channel::receive(void * data, size_t size, int flags) {
    return by != nullptr ? by->receive(socket, data, size, flags) : recv(socket, data, size, flags);
}

// After a receive() that did not wait
static bool is_nothing_yet(ssize_t n) {
    return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

// In recv() a thread would also wake up each time that the other end takes what we have sent. 0: does not wait
static bool await_bytes(int socket, int milliseconds) {
    pollfd arrival = { socket, POLLIN, 0 };
    return poll(&arrival, 1, milliseconds) > 0;
}

// As recv(): the first bytes of a message
ssize_t channel::read_first(void * data, size_t size) {
    ssize_t n = -1;
    const auto nothing_yet = [&] { return is_nothing_yet(n); };
    if (by != nullptr) {
        n = receive(data, size, MSG_DONTWAIT); // it may have more than the socket has
        if (!nothing_yet()) {
            return n;
        }
    }
    errno = EAGAIN;
    const auto began = next.look(
        [&] {
            n = receive(data, size, MSG_DONTWAIT);
            return !nothing_yet();
        },
        [&](lookout::duration most) { nap(socket, most); });
    if (nothing_yet()) {
        await_bytes(socket, -1);
        n = receive(data, size, 0);
    }
    next.came(began);
    return n;
}

bool channel::read_some(void * data, size_t size, bool may_end) {
    auto * at = static_cast<uint8_t *>(data);
    size_t done = 0;
    while (done < size) {
        const bool first = may_end && done == 0;
        const ssize_t n = first ? read_first(at, size) : receive(at + done, size - done, 0);
        if (n == 0) {
            if (first) {
                return false;
            }
            throw lost("the connection ended within a message");
        }
        if (n < 0 && errno != EINTR) {
            throw lost(reason("it cannot be read from"));
        }
        done += n > 0 ? static_cast<size_t>(n) : 0;
        came += n > 0 ? static_cast<uint64_t>(n) : 0;
    }
    return true;
}

bool channel::read_header(wire_header & header) {
    uint8_t bytes[wire_header::bytes];
    if (!read_some(bytes, sizeof bytes, true)) {
        return false;
    }
    reader in(bytes, sizeof bytes);
    header = wire_header::take(in);
    check(header);
    return true;
}

channel::found channel::read_header_now(wire_header & header) {
    uint8_t bytes[wire_header::bytes];
    const ssize_t n = receive(bytes, sizeof bytes, MSG_DONTWAIT);
    if (is_nothing_yet(n)) {
        return found::nothing;
    }
    if (n == 0) {
        return found::end;
    }
    if (n < 0) {
        throw lost(reason("it cannot be read from"));
    }
    came += static_cast<uint64_t>(n);
    read_some(bytes + n, sizeof bytes - static_cast<size_t>(n), false);
    reader in(bytes, sizeof bytes);
    header = wire_header::take(in);
    check(header);
    return found::header;
}

void channel::await_more() {
    const auto began =
        next.look([&] { return await_bytes(socket, 0); }, [&](lookout::duration most) { nap(socket, most); });
    await_bytes(socket, -1);
    next.came(began);
}

// Throws bad_message
void channel::check(const wire_header & header) {
    uint32_t least = 0;
    uint32_t most = 0;
    if (!body_limits(header.kind, other, least, most)) {
        throw bad_message("there is no message " + std::to_string(header.kind));
    }
    if (static_cast<message>(header.kind) == message::progress) {
        next.rest(); // or whoever says it often would keep this thread awake
    }
    if (header.size < least || header.size > most) {
        throw bad_message(
            "message " + std::to_string(header.kind) + " cannot have " + std::to_string(header.size) + " bytes");
    }
}

void channel::read_body(void * data, size_t size) {
    read_some(data, size, false);
}

blob channel::read_body(const wire_header & header) {
    blob body(header.size);
    read_body(body.data(), body.size());
    return body;
}

void put_header(writer & out, message number, uint64_t id, size_t size) {
    wire_header header;
    header.size = static_cast<uint32_t>(size);
    header.kind = static_cast<uint16_t>(number);
    header.id = id;
    header.put(out);
}

size_t channel::send_now(const void * data, size_t size, const void * more, size_t more_size) {
    if (by != nullptr) {
        return by->send_now(socket, data, size, more, more_size);
    }
    iovec parts[2] = {
        { const_cast<void *>(data), size },
        { const_cast<void *>(more), more_size },
    };
    msghdr all = {};
    all.msg_iov = parts;
    all.msg_iovlen = more_size > 0 ? 2 : 1;
    const ssize_t n = sendmsg(socket, &all, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? static_cast<size_t>(n) : 0;
}

size_t channel::send_some(const void * data, size_t size) {
    for (;;) {
        const ssize_t n = by != nullptr ? by->send_some(socket, data, size) : send(socket, data, size, MSG_NOSIGNAL);
        if (n >= 0) {
            return static_cast<size_t>(n);
        }
        if (errno != EINTR) {
            throw lost(reason("it cannot be written to"));
        }
    }
}

} // namespace mesh
