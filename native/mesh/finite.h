// Whether values can be computed with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace mesh {

// Whether none of these is infinite, or no number
inline bool are_finite(const float * values, size_t count) {
    constexpr uint32_t EXPONENT = 0x7f800000; // all of its bits are set only in these
    uint32_t found = 0;
    for (size_t i = 0; i < count; i++) { // to the end, which compilers turn into a few instructions for many values
        uint32_t bits;
        std::memcpy(&bits, values + i, sizeof bits);
        found |= (bits & EXPONENT) == EXPONENT ? 1 : 0;
    }
    return found == 0;
}

} // namespace mesh
