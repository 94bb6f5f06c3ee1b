// One end of a connection: whole messages over a socket, each checked against its limits before a byte of its body is
// read. One thread at a time may read, while another one writes.
#pragma once

#include "lookout.h"
#include "protocol.h"

#include <atomic>
#include <memory>

#include <sys/types.h>

namespace mesh {

// The other side is gone, or the socket broke.
struct lost : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// How bytes cross a socket when they do not cross it as they are (sealing.h). One thread may receive while another one
// sends. Throws lost, bad_message
class carrier {
public:
    virtual ~carrier() = default;

    // As recv()
    virtual ssize_t receive(int socket, void * data, size_t size, int flags) = 0;
    // How many bytes the socket takes without waiting; hides what is wrong
    virtual size_t send_now(int socket, const void * data, size_t size, const void * more, size_t more_size) = 0;
    // As send(). What send_now() has not taken comes here first
    virtual ssize_t send_some(int socket, const void * data, size_t size) = 0;
};

class channel {
public:
    // Takes over the socket, at whose other end is this one
    channel(int socket, sender other, std::unique_ptr<carrier> by = nullptr);
    ~channel();
    channel(const channel &) = delete;
    channel & operator=(const channel &) = delete;

    // The next header, or false where the other side has ended between two messages
    bool read_header(wire_header & header);
    // As many bytes of its body
    void read_body(void * data, size_t size);
    blob read_body(const wire_header & header);

    // As read_header(), but only what is there: for one of several threads that read in turns
    enum class found { header, nothing, end };
    found read_header_now(wire_header & header);
    // Waits until something comes, or the other side has ended. Another thread may then be the first to read it
    void await_more();

    // How many bytes of messages, which the caller has put together, the socket takes. The first one does not wait, and
    // hides what is wrong; the second one waits for at least one
    size_t send_now(const void * data, size_t size, const void * more, size_t more_size);
    size_t send_some(const void * data, size_t size);

    // Bytes so far; from any thread
    uint64_t received() const { return came; }

    // Ends both directions: whoever waits in a read or a write is woken
    void shut();

private:
    void check(const wire_header & header);
    bool read_some(void * data, size_t size, bool may_end);
    ssize_t read_first(void * data, size_t size);
    ssize_t receive(void * data, size_t size, int flags);

    const int socket;
    const sender other;
    const std::unique_ptr<carrier> by; // nullptr: as they are
    std::atomic<uint64_t> came{ 0 };
    lookout next;
};

void put_header(writer & out, message number, uint64_t id, size_t size);

} // namespace mesh
