// What a thread that reads from a channel wakes up for.
#include "channel.h"
#include "check.h"
#include "served.h"

#include <fstream>

#include <sys/syscall.h>
#include <unistd.h>

using namespace mesh;

#ifdef __linux__

static std::string line_of(long thread, const char * name) {
    std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
    for (std::string line; std::getline(status, line);) {
        if (line.rfind(name, 0) == 0) {
            return line;
        }
    }
    throw std::runtime_error(std::string("no line ") + name);
}

// How often it has gone to sleep
static long sleeps_of(long thread) {
    const std::string line = line_of(thread, "voluntary_ctxt_switches:");
    return std::stol(line.substr(line.find(':') + 1));
}

static void until_asleep(long thread) {
    while (line_of(thread, "State:").find("sleeping") == std::string::npos) {
        std::this_thread::yield();
    }
}

TEST(a_thread_that_reads_sleeps_on_while_the_other_end_takes_what_we_send) {
    const socket_pair pair;
    channel here(pair.ends[0], sender::head);
    std::atomic<long> id{ 0 };
    std::thread reading([&] {
        id = syscall(SYS_gettid);
        wire_header header;
        here.read_header(header);
    });
    while (id == 0) {
        std::this_thread::yield();
    }
    uint8_t bytes[256] = {};
    until_asleep(id);
    const long before = sleeps_of(id);
    bool passed = true;
    constexpr int TIMES = 100;
    for (int i = 0; i < TIMES; i++) {
        passed = passed && here.send_now(bytes, sizeof bytes, nullptr, 0) == sizeof bytes;
        passed = passed && recv(pair.ends[1], bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes;
        until_asleep(id);
    }
    const long after = sleeps_of(id);
    close(pair.ends[1]);
    reading.join();
    CHECK(passed);
    CHECK(after - before < TIMES / 10);
}

#endif
