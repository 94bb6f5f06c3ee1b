// Each token walks through all weights, and in pages of 4 KiB that costs several percent; which pages a process gets
// is luck. To ask for large ones before the memory is filled would hold up a load where they are dear: in a guest whose
// free memory is its host's. So the kernel is asked once something has been computed, page by page, in a thread that
// gives way to what computes. Weights alone are worth it: of a cache only as much is walked through as a context has
// tokens. Elsewhere than on Linux nothing happens, and where whoever runs the machine wants none.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace mesh {

// Processor time of this process that went into large pages: nothing that was asked for has moved on by it
double large_page_seconds();

class large_pages {
public:
    large_pages() = default;
    ~large_pages();
    large_pages(const large_pages &) = delete;
    large_pages & operator=(const large_pages &) = delete;

    // Memory of this process that stays where it is until `forget`, and is filled before `start`
    void add(const void * data, size_t size);

    // Begins with all that has been added. Costs nothing where there is nothing new
    void start();

    // What lies inside is about to be freed: returns when nobody is at work there
    void forget(const void * data, size_t size);

private:
    struct range {
        uintptr_t from, to;
    };

    void work(size_t page);

    std::vector<range> added; // not begun yet

    std::mutex mutex; // of what follows
    std::condition_variable changed;
    std::vector<range> left;
    uintptr_t at_work = 0; // on this page, with the mutex open; 0: on none
    bool ended = false;
    std::thread thread;
};

} // namespace mesh
