// A worker by hand that welcomes a client, with whatever words.
#pragma once

#include "check.h"
#include "client.h"
#include "names.h"
#include "plain_channel.h"
#include "served.h"

#include <future>

namespace mesh {

// What a worker by hand says to HELLO: one device, and all that this release of ggml has
struct welcome_words {
    wire_device device;
    std::vector<uint32_t> operations;
    std::vector<uint32_t> types;
    std::vector<uint32_t> neighbours;
    uint32_t devices = 1;

    welcome_words() {
        set_name(device.name, "CPU");
        device.alignment = 64;
        device.most_bytes = device.free_bytes = 1ull << 40;
        for (uint32_t number = 0; number < OPERATION_COUNT; number++) {
            ggml_op op;
            if (operation_of_number(number, op)) {
                operations.push_back(number);
            }
        }
        for (uint32_t number = 0; number < TYPE_COUNT; number++) {
            ggml_type type;
            if (type_of_number(number, type)) {
                types.push_back(number);
            }
        }
    }
    blob bytes() const {
        welcome_body body;
        body.version = VERSION;
        body.device_count = devices;
        body.operation_count = static_cast<uint32_t>(operations.size());
        body.type_count = static_cast<uint32_t>(types.size());
        writer out;
        body.put(out);
        for (uint32_t i = 0; i < devices; i++) {
            device.put(out);
        }
        for (const auto * list : { &operations, &types }) {
            for (const uint32_t one : *list) {
                out.put(one);
            }
        }
        return out.data;
    }
    blob met() const {
        writer out;
        for (const uint32_t one : neighbours) {
            out.put(one);
        }
        return out.data;
    }
};

// A worker by hand, which reads all that it is asked until it is deaf, and says to each ALLOCATE what `allocates` is
class welcoming_worker {
public:
    explicit welcoming_worker(const welcome_words & says, uint32_t allocates = 1) :
        welcoming_worker(says.bytes(), allocates, says.met()) {}
    explicit welcoming_worker(const blob & says, uint32_t allocates = 1, const blob & met = {}) :
        end(pair.ends[1], sender::head) {
        reading = std::thread([this, says, allocates, met] {
            try {
                wire_header header;
                while (end.read_header(header)) {
                    end.read_body(header);
                    const auto number = static_cast<message>(header.kind);
                    {
                        std::lock_guard<std::mutex> lock(mutex);
                        all.push_back(number);
                    }
                    if (number == message::hello) {
                        end.write(message::welcome, header.id, says);
                    } else if (number == message::allocate) {
                        allocated_body body;
                        body.done = allocates;
                        end.write_body(header.id, body);
                    } else if (number == message::meet) {
                        end.write(message::met, header.id, met);
                    } else if (number == message::sync) {
                        end.write(message::synced, header.id, {});
                    }
                    if (number == message::fill) {
                        deaf.get_future().wait(); // the head clears a buffer
                    }
                }
            } catch (const std::exception &) {
                // the head ends it
            }
        });
    }
    ~welcoming_worker() {
        end.shut();
        deaf.set_value();
        reading.join();
        while (link != nullptr && link->wait_for_room()) { // its end is told before the next test begins
            std::this_thread::yield();
        }
    }

    std::vector<client_device *> open(uint32_t place, uint32_t count = 0) {
        static const weights_index none;
        static ggml_backend_reg no_registry = {};
        const auto devices = open_workers({ { pair.ends[0], count } }, &no_registry, none, place);
        link = &devices[0]->worker->link;
        return devices;
    }

    // Says from now on that it is alive, for as long as the process is: with a worker that has a backend, it ends
    void live() {
        std::thread([this] {
            for (;;) {
                end.write_body(0, progress_body());
                std::this_thread::sleep_for(std::chrono::seconds(1));
            }
        }).detach();
    }

    // All that it was sent so far, with an answered SYNC behind it
    std::vector<message> heard() {
        CHECK(link->wait(link->ask(message::sync, {}, message::synced, nullptr, 0)));
        std::lock_guard<std::mutex> lock(mutex);
        return all;
    }

private:
    const socket_pair pair;
    plain_channel end;
    connection * link = nullptr; // for as long as the process is
    std::promise<void> deaf;
    std::mutex mutex;
    std::vector<message> all;
    std::thread reading;
};

} // namespace mesh
