// A worker by hand, which a connection has greeted and a watch sees, and what the head tells its parent.
#pragma once

#include "check.h"
#include "plain_channel.h"
#include "report.h"
#include "served.h"
#include "watch.h"

#include <unistd.h>

namespace mesh {

class watched_worker {
public:
    watched_worker(watch & all, uint32_t place) :
        link(*new connection(pair.ends[0], place, "MESH" + std::to_string(place))), end(pair.ends[1], sender::head) {
        std::thread welcoming([this] {
            wire_header hello;
            end.read_header(hello);
            end.read_body(hello);
            end.write_body(1, welcome_body());
        });
        blob welcome;
        CHECK(
            link.greet("") && link.await_welcome(welcome, std::chrono::steady_clock::now() + std::chrono::seconds(30)));
        welcoming.join();
        all.add(link, place);
    }

    // What its end means for the head is told before the next test begins
    ~watched_worker() {
        end.shut();
        while (!is_lost()) {
            std::this_thread::yield();
        }
    }

    // The head waits for this from now on; the first one has the id 2
    void is_asked() { CHECK(link.send(sync_body())); }

    void say(uint64_t done, uint64_t request = 0, uint32_t seconds = 0, uint32_t waits = 0) {
        say_only(done, request, seconds, waits);
        for (progress_body got = link.report(); got.done != done || got.request != request || got.seconds != seconds;
            got = link.report()) {
            std::this_thread::yield();
        }
    }
    // What the head may not believe
    void say_only(uint64_t done, uint64_t request = 0, uint32_t seconds = 0, uint32_t waits = 0, uint64_t id = 0) {
        progress_body body;
        body.done = done;
        body.request = request;
        body.seconds = seconds;
        body.waits = waits;
        body.node = 3;
        body.nodes = 9;
        end.write_body(id, body);
    }

    bool is_lost() { return !link.wait_for_room(); }
    void await_loss() {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (!is_lost()) {
            CHECK(std::chrono::steady_clock::now() < deadline);
            std::this_thread::yield();
        }
    }

private:
    const socket_pair pair;

public:
    connection & link; // for as long as the process is
    plain_channel end;
};

// What the parent was told until now, line by line
class told {
public:
    told() {
        if (pipe(ends) != 0) {
            throw std::runtime_error("no pipe");
        }
        open_report(ends[1]);
    }
    std::string all() {
        char text[4096];
        const ssize_t n = read(ends[0], text, sizeof text);
        return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
    }

private:
    int ends[2];
};

} // namespace mesh
