// Sockets, and a session of a CPU in a thread of its own with this process's end of its connection.
#pragma once

#include "session.h"

#include "ggml-cpu.h"

#include <thread>

#include <sys/socket.h>

namespace mesh {

// Two connected sockets
struct socket_pair {
    socket_pair() {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) {
            throw std::runtime_error("no socketpair");
        }
    }
    int ends[2];
};

class served {
public:
    static constexpr uint64_t MEMORY = 64 << 20;

    // `prepare` may change the device before it is served; `second`: as session; `other`: is served in place of a CPU
    explicit served(
        const std::vector<neighbour_socket> & sockets = {},
        std::function<void(ggml_backend_t)> prepare = [](ggml_backend_t) {},
        std::chrono::milliseconds second = std::chrono::seconds(1), ggml_backend_t other = nullptr) {
        const socket_pair pair;
        own_end = pair.ends[0];
        serving = std::thread([this, sockets, prepare, second, other, other_end = pair.ends[1]] {
            ggml_backend_t backend = other != nullptr ? other : ggml_backend_cpu_init();
            if (other == nullptr) {
                ggml_backend_cpu_set_n_threads(backend, 1);
            }
            prepare(backend);
            {
                const size_rule rule = find_size_rule(ggml_backend_get_default_buffer_type(backend));
                const std::vector<lent_device> devices = { { backend, MEMORY, rule } };
                const local_weights files;
                channel head(other_end, sender::head);
                neighbours others(sockets);
                try {
                    session(head, devices, files, others, [this] { abandoned = true; }, second).run();
                } catch (const lost &) {
                    // the head did
                } catch (const std::exception & error) {
                    why = error.what();
                }
            }
            ggml_backend_free(backend);
        });
    }

    // Its end of the connection has been closed by then
    ~served() {
        if (serving.joinable()) {
            serving.join();
        }
    }

    // Why it ended, or "" if it was the head that did
    std::string end() {
        serving.join();
        return why;
    }
    void detach() { serving.detach(); }

    int own_end;
    std::atomic<bool> abandoned{ false };

private:
    std::thread serving;
    std::string why;
};

} // namespace mesh
