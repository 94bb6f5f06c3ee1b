// What devices that work by themselves have been given and have not done yet. Requests are given to them in order and
// without waiting; what has to wait for a device (answers, pushes, the memory that it still reads) is done behind it,
// in the same order, by a thread of this class. A device that works while it is asked, as the CPU, has nothing under
// way.
#pragma once

#include "buffers.h"
#include "progress.h"

#include "ggml-cpp.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace mesh {

class flights {
public:
    // `woken` is called by the own thread when something has failed behind a device: check() throws it
    flights(const std::vector<lent_device> & devices, progress & doing, std::function<void()> woken);
    ~flights();
    flights(const flights &) = delete;
    flights & operator=(const flights &) = delete;

    // Whether it works by itself
    bool leaves(uint32_t device) const { return lanes[device].leaves; }

    // Bytes that the device reads until it has done all that it has been given. Waits while it has too many of them
    void keep(uint32_t device, uint64_t id, blob bytes);

    // Does it when the device has done all that it has been given: now, where that is so. `id` of the request
    void behind(uint32_t device, uint64_t id, std::function<void()> action);

    // What is given to `next` begins when `device` has done all that it has been given
    void order(uint32_t device, uint32_t next);

    // Until nothing is under way. Never throws
    void wait();

    // Throws what has failed
    void check();

private:
    struct lane {
        ggml_backend_t backend;
        bool leaves;
        std::vector<ggml_backend_event_ptr> spare;
        std::vector<blob> kept; // since the last flight
        size_t kept_bytes = 0;
    };
    struct flight {
        uint32_t device;
        uint64_t id;
        ggml_backend_event_ptr event;
        std::vector<blob> kept;
        size_t kept_bytes;
        std::function<void()> action;
    };
    void run();
    void land(flight & one);

    std::vector<lane> lanes;
    progress & doing;
    const std::function<void()> woken;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<flight> flying;
    size_t kept_bytes = 0; // by all that fly, at most QUEUE_BYTES
    bool landing = false;
    bool ended = false;
    std::exception_ptr failed;
    std::thread own;
};

} // namespace mesh
