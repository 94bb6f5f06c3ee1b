// Two workers that add up, again and again.
#pragma once

#include "check.h"
#include "neighbours.h"

#include <thread>

namespace mesh {

// Each sends two summands of a sum and takes two, which leaves one to be read when the first one is; at times one of
// them computes for longer, so that the other one reads what comes itself, sleeps, or finds it read
inline void add_up_in_turns(neighbours & first, uint32_t second_one, neighbours & second, uint32_t first_one) {
    static constexpr uint64_t SUMS = 1500;
    const auto add_up = [](neighbours & own, uint32_t other, unsigned slow) {
        for (uint64_t i = 0; i < SUMS; i++) {
            if (i % slow == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(i % 5 == 0 ? 3000 : 50));
            }
            const blob data(1 + i % 300, static_cast<uint8_t>(i));
            own.push_summand(other, i, data);
            own.push_summand(other, i, data);
            CHECK(own.take_summand(other, i) == data);
            CHECK(own.take_summand(other, i) == data);
        }
    };
    std::thread one([&] { add_up(first, second_one, 7); });
    add_up(second, first_one, 11);
    one.join();
}

} // namespace mesh
