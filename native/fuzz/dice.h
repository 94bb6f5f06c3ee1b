// Numbers by chance, the same ones for the same seed on every machine.
#pragma once

#include <cstdint>
#include <initializer_list>

class dice {
public:
    explicit dice(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull) {}

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

private:
    uint64_t state;
};
