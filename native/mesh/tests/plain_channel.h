// A channel whose writer waits until all is sent, for the ends that tests play.
#pragma once

#include "channel.h"

#include <mutex>

namespace mesh {

class plain_channel : public channel {
public:
    using channel::channel;

    // Body, then more
    void write(message number, uint64_t id, const blob & body, const void * more = nullptr, size_t more_size = 0) {
        writer out;
        put_header(out, number, id, body.size() + more_size);
        out.put_bytes(body.data(), body.size());
        out.put_bytes(more, more_size);
        std::lock_guard<std::mutex> lock(writing);
        for (size_t at = 0; at < out.data.size();) {
            at += send_some(out.data.data() + at, out.data.size() - at);
        }
    }
    template <class Body>
    void write_body(uint64_t id, const Body & body, const void * more = nullptr, size_t size = 0) {
        writer out;
        body.put(out);
        write(Body::number, id, out.data, more, size);
    }

private:
    std::mutex writing;
};

} // namespace mesh
