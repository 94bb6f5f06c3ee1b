// A device like a GPU, made of the CPU: what it is given it does later, in order, in a thread of its own, and not at
// all while it is held. Its memory cannot be read, is full of what was there before, and pads quantized rows as CUDA
// does.
#pragma once

#include "ggml-backend-impl.h"
#include "ggml-cpp.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace mesh {

class late_device {
public:
    // For as long as the process is. Some devices do things later and have no events, which tell when
    explicit late_device(bool has_events = true);
    late_device(const late_device &) = delete;
    late_device & operator=(const late_device &) = delete;

    // Served by a session, which frees it
    ggml_backend_t open();

    void hold();
    void release();

    // Graphs that it was given and has not computed, or has
    size_t waiting();
    size_t computed();

    // The buffer that was made last
    std::vector<uint8_t> last_buffer();
    void made(const void * bytes, size_t size);

    void give(std::function<void()> job, bool graph = false);
    void wait_all();
    void compute(const ggml_cgraph * graph);

    const bool has_events;
    ggml_backend_device device = {};
    ggml_backend_buffer_type memory = {};

private:
    struct job {
        std::function<void()> run;
        bool graph;
    };
    void run();

    ggml_backend_ptr cpu;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<job> jobs;
    size_t graphs = 0;
    size_t done = 0;
    bool held = false;
    bool working = false;
    const uint8_t * last_bytes = nullptr;
    size_t last_size = 0;
};

} // namespace mesh
