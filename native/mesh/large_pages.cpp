#include "large_pages.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#ifdef __linux__
#include <pthread.h>
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

static int64_t nanoseconds(clockid_t clock) {
    timespec used = {};
    clock_gettime(clock, &used);
    return used.tv_sec * 1000000000ll + used.tv_nsec;
}

// Processor time of the threads that lay pages. A page counts while it is being laid, not only afterwards: the kernel
// may have to make room for it, and one page then takes longer than what counts as work (progress.cpp)
struct laying_times {
    std::mutex mutex;
    std::vector<clockid_t> running;
    int64_t ended = 0; // nanoseconds of threads that are gone
};

static laying_times & times() {
    static auto * const all = new laying_times; // never freed: threads may outlive main()
    return *all;
}

// Counts the thread that makes it, as long as it exists
class counted_thread {
public:
    counted_thread() {
#ifdef __linux__
        pthread_getcpuclockid(pthread_self(), &clock);
#endif
        std::lock_guard<std::mutex> lock(times().mutex);
        times().running.push_back(clock);
    }
    counted_thread(const counted_thread &) = delete;
    counted_thread & operator=(const counted_thread &) = delete;

    ~counted_thread() {
        auto & [mutex, running, ended] = times();
        std::lock_guard<std::mutex> lock(mutex);
        running.erase(std::remove(running.begin(), running.end(), clock), running.end());
        ended += nanoseconds(clock);
    }

    int64_t spent() const { return nanoseconds(clock); }

private:
    clockid_t clock = CLOCK_THREAD_CPUTIME_ID;
};

double large_page_seconds() {
    auto & [mutex, running, ended] = times();
    std::lock_guard<std::mutex> lock(mutex);
    int64_t sum = ended;
    for (const clockid_t clock : running) {
        sum += nanoseconds(clock);
    }
    return static_cast<double>(sum) * 1e-9;
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
    const counted_thread counted;
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
        const int64_t before = counted.spent();
        collapse(at, page);
        const int64_t took = counted.spent() - before;
        lock.lock();
        at_work = 0;
        changed.notify_all();
        changed.wait_for(lock, REST * std::chrono::nanoseconds(took), [&] { return ended; });
    }
}

} // namespace mesh
