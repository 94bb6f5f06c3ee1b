// What this process has used of processors, and how often a thread of it had to leave one to others
#pragma once

#include <sys/resource.h>

#include <chrono>

namespace mesh {

struct used_processors {
    std::chrono::microseconds time;
    long preemptions;
};

inline used_processors used_so_far() {
    rusage found = {};
    getrusage(RUSAGE_SELF, &found);
    const auto span = [](const timeval & one) {
        return std::chrono::seconds(one.tv_sec) + std::chrono::microseconds(one.tv_usec);
    };
    return { span(found.ru_utime) + span(found.ru_stime), found.ru_nivcsw };
}

} // namespace mesh
