#include "large_pages.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <fstream>
#include <string>
#include <system_error>

#ifdef __linux__
#include <sys/mman.h>
#include <sys/resource.h>
static constexpr int COLLAPSE = 25; // MADV_COLLAPSE since Linux 6.1: older headers lack it
#endif

namespace mesh {

static size_t read_large_page() {
    const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
    std::string enabled;
    std::getline(std::ifstream(folder + "enabled"), enabled);
    size_t size = 0;
    std::ifstream(folder + "hpage_pmd_size") >> size;
    return enabled.empty() || enabled.find("[never]") != std::string::npos ? 0 : size;
}

// Bytes of a large page; 0: there are none, or nobody is to ask for them
static size_t large_page() {
    static const size_t size = read_large_page();
    return size;
}

// Nothing comes of it where this kernel cannot, no page is free, or nothing is there
static void collapse(uintptr_t at, size_t page) {
#ifdef __linux__
    madvise(reinterpret_cast<void *>(at), page, COLLAPSE);
#else
    (void) at;
    (void) page;
#endif
}

// for each page so many times as long as it took: who computes waits for this process's memory, whatever the priority
static constexpr int REST = 3;

static std::atomic<int64_t> spent{ 0 }; // nanoseconds

double large_page_seconds() {
    return static_cast<double>(spent) * 1e-9;
}

static int64_t thread_nanoseconds() {
    timespec used = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return used.tv_sec * 1000000000ll + used.tv_nsec;
}

large_pages::~large_pages() {
    {
        std::lock_guard<std::mutex> lock(mutex);
        ended = true;
        changed.notify_all();
    }
    if (thread.joinable()) {
        thread.join();
    }
}

void large_pages::add(const void * data, size_t size) {
    const auto from = reinterpret_cast<uintptr_t>(data);
    if (large_page() != 0 && size >= large_page()) {
        added.push_back({ from, from + size });
    }
}

void large_pages::start() {
    if (added.empty()) {
        return;
    }
    std::lock_guard<std::mutex> lock(mutex);
    left.insert(left.end(), added.begin(), added.end());
    added.clear();
    try {
        if (!thread.joinable()) {
            thread = std::thread([this] { work(large_page()); });
        }
    } catch (const std::system_error &) {
        left.clear(); // small ones will do
    }
    changed.notify_all();
}

void large_pages::forget(const void * data, size_t size) {
    const auto from = reinterpret_cast<uintptr_t>(data);
    const auto is_inside = [from, size](const range & one) { return one.from >= from && one.from - from < size; };
    added.erase(std::remove_if(added.begin(), added.end(), is_inside), added.end());
    std::unique_lock<std::mutex> lock(mutex);
    left.erase(std::remove_if(left.begin(), left.end(), is_inside), left.end());
    changed.wait(lock, [&] { return at_work < from || at_work - from >= size; });
}

void large_pages::work(size_t page) {
#ifdef __linux__
    setpriority(PRIO_PROCESS, 0, 19); // of this thread: what computes comes first
#endif
    std::unique_lock<std::mutex> lock(mutex);
    while (!ended) {
        if (left.empty()) {
            changed.wait(lock);
            continue;
        }
        range & one = left.front();
        const uintptr_t at = (one.from + page - 1) / page * page;
        if (at + page > one.to) {
            left.erase(left.begin());
            continue;
        }
        one.from = at + page;
        at_work = at;
        lock.unlock();
        const int64_t before = thread_nanoseconds();
        collapse(at, page);
        const int64_t took = thread_nanoseconds() - before;
        spent += took;
        lock.lock();
        at_work = 0;
        changed.notify_all();
        changed.wait_for(lock, REST * std::chrono::nanoseconds(took), [&] { return ended; });
    }
}

} // namespace mesh
