#include "flights.h"

#include <algorithm>
#include <memory>

namespace mesh {

// As many at once: the devices always have something to do, and a head that runs ahead waits in its socket
static constexpr size_t MOST = 64;

// So much is kept before the device is asked whether it has been read: a quarter of what a queue of requests holds
static constexpr size_t KEPT_BYTES = QUEUE_BYTES / 4;

static bool works_by_itself(ggml_backend_t backend) {
    ggml_backend_dev_t device = ggml_backend_get_device(backend);
    ggml_backend_dev_props props;
    ggml_backend_dev_get_props(device, &props);
    return props.type != GGML_BACKEND_DEVICE_TYPE_CPU && props.caps.async && props.caps.events &&
           ggml_backend_event_ptr(ggml_backend_event_new(device)) != nullptr;
}

flights::flights(const std::vector<lent_device> & devices, progress & doing, std::function<void()> woken) :
    doing(doing), woken(std::move(woken)) {
    for (const auto & device : devices) {
        lanes.emplace_back();
        lanes.back().backend = device.backend;
        lanes.back().leaves = works_by_itself(device.backend);
    }
    if (std::any_of(lanes.begin(), lanes.end(), [](const lane & one) { return one.leaves; })) {
        own = std::thread([this] { run(); });
    }
}

flights::~flights() {
    wait();
    {
        std::lock_guard<std::mutex> lock(mutex);
        ended = true;
        changed.notify_all();
    }
    if (own.joinable()) {
        own.join();
    }
}

void flights::keep(uint32_t device, uint64_t id, blob bytes) {
    lane & one = lanes[device];
    if (!one.leaves) {
        return ggml_backend_synchronize(one.backend); // it may read them later, and nothing says when
    }
    one.kept_bytes += bytes.size();
    one.kept.push_back(std::move(bytes));
    if (one.kept_bytes > KEPT_BYTES) {
        behind(device, id, [] {});
    }
}

void flights::behind(uint32_t device, uint64_t id, std::function<void()> action) {
    lane & one = lanes[device];
    if (!one.leaves) {
        ggml_backend_synchronize(one.backend);
        return action();
    }
    flight next = { device, id, nullptr, std::move(one.kept), one.kept_bytes, std::move(action) };
    one.kept.clear();
    one.kept_bytes = 0;
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] {
        const bool has_room = kept_bytes == 0 || kept_bytes + next.kept_bytes <= QUEUE_BYTES;
        return flying.size() < MOST && has_room;
    });
    kept_bytes += next.kept_bytes;
    if (one.spare.empty()) {
        one.spare.emplace_back(ggml_backend_event_new(ggml_backend_get_device(one.backend)));
    }
    next.event = std::move(one.spare.back());
    one.spare.pop_back();
    ggml_backend_event_record(next.event.get(), one.backend);
    if (flying.empty() && !landing) {
        doing.flying = id;
    }
    flying.push_back(std::move(next));
    changed.notify_all();
}

void flights::order(uint32_t device, uint32_t next) {
    if (!lanes[device].leaves || !lanes[next].leaves) {
        return wait();
    }
    ggml_backend_event_ptr event(ggml_backend_event_new(ggml_backend_get_device(lanes[device].backend)));
    ggml_backend_event_record(event.get(), lanes[device].backend);
    ggml_backend_event_wait(lanes[next].backend, event.get());
    behind(next, doing.request, [held = std::make_shared<ggml_backend_event_ptr>(std::move(event))] {});
}

void flights::wait() {
    for (lane & one : lanes) {
        ggml_backend_synchronize(one.backend);
        one.kept.clear();
        one.kept_bytes = 0;
    }
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return flying.empty() && !landing; });
}

void flights::check() {
    std::lock_guard<std::mutex> lock(mutex);
    if (failed != nullptr) {
        std::rethrow_exception(failed);
    }
}

void flights::run() {
    std::unique_lock<std::mutex> lock(mutex);
    for (;;) {
        changed.wait(lock, [&] { return ended || !flying.empty(); });
        if (flying.empty()) {
            return;
        }
        // it stays the first one while the device has not done it
        ggml_backend_event_t event = flying.front().event.get();
        lock.unlock();
        ggml_backend_event_synchronize(event);
        lock.lock();
        flight one = std::move(flying.front());
        flying.pop_front();
        landing = true;
        lanes[one.device].spare.push_back(std::move(one.event));
        doing.steps++;
        changed.notify_all();
        lock.unlock();
        land(one);
        lock.lock();
        landing = false;
        doing.flying = flying.empty() ? 0 : flying.front().id; // not before it has been answered
        changed.notify_all();
    }
}

void flights::land(flight & one) {
    one.kept.clear();
    {
        std::lock_guard<std::mutex> lock(mutex);
        kept_bytes -= one.kept_bytes;
        changed.notify_all();
    }
    try {
        one.action();
        return;
    } catch (...) {
        std::lock_guard<std::mutex> lock(mutex);
        if (failed == nullptr) {
            failed = std::current_exception();
        }
    }
    woken();
}

} // namespace mesh
