// What a run has come to.
#pragma once

#include <cstdint>

struct fuzz_totals {
    uint64_t frames = 0;   // sent
    uint64_t graphs = 0;   // of them
    uint64_t accepted = 0; // frames that were not refused
    uint64_t valid = 0;    // frames without damage
    uint64_t records = 0;  // sealed ones
};
