// Valid graphs for the fuzzer: one operation of each kind that the server allows, made by ggml's own constructors.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <vector>

// Deterministic: the same seed gives the same session on every machine
class dice {
public:
    explicit dice(uint64_t seed) : state(seed*0x9E3779B97F4A7C15ull + 0x2545F4914F6CDD1Dull) {}

    uint64_t next() { // splitmix64
        uint64_t z = (state += 0x9E3779B97F4A7C15ull);
        z = (z ^ (z >> 30))*0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27))*0x94D049BB133111EBull;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t n) { return next() % n; }
    int64_t  within(int64_t first, int64_t last) { return first + (int64_t) below((uint64_t) (last - first + 1)); }
    bool     one_in(uint64_t n) { return below(n) == 0; }
    template <typename T> T of(std::initializer_list<T> values) { return values.begin()[below(values.size())]; }

private:
    uint64_t state;
};

// A tensor of indices that a kernel trusts: each must be below limit
struct index_tensor {
    ggml_tensor * tensor;
    int64_t       limit;
};

// How many kinds of operations there are
int n_operations();

// Makes one of kind `which`, with whatever it needs, in ctx. before is a node to work on, if its shape fits; or null.
ggml_tensor * make_operation(ggml_context * ctx, dice & d, int which, ggml_tensor * before, std::vector<index_tensor> & indices);
