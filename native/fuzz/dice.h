// Numbers by chance, the same ones for the same seed on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

class dice {
public:
    // Seeds are numbers in a row: mixed, or one would have the numbers of the one before, moved by one
    explicit dice(uint64_t seed) : state(seed) { state = next(); }

    uint64_t next() { // splitmix64
        uint64_t z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t n) { return next() % n; }
    int64_t within(int64_t first, int64_t last) { return first + (int64_t) below((uint64_t) (last - first + 1)); }
    bool one_in(uint64_t n) { return below(n) == 0; }
    template <typename T> T of(std::initializer_list<T> values) { return values.begin()[below(values.size())]; }
    template <typename T> const T & of(const std::vector<T> & values) { return values[below(values.size())]; }

    // A number that is tried where another one belongs, of ten kinds
    uint64_t odd(uint64_t kind) {
        switch (kind) {
        case 0:
            return 0;
        case 1:
            return 1;
        case 2:
            return below(300);
        case 3:
            return 1ull << below(64);
        case 4:
            return (1ull << below(64)) - 1;
        case 5:
            return ~0ull - below(64);
        case 6:
            return INT32_MAX - below(3);
        case 7:
            return (uint64_t) -within(1, 5000);
        case 8:
            return 0x7fc00000; // NaN
        default:
            return next();
        }
    }

private:
    uint64_t state;
};
