// How the values of a sum over several workers cross, for both of a head and a worker.
#pragma once

#include <cstdint>

namespace mesh {

// How the values of a sum cross: the numbers are those of SUM
enum class sum_form : uint32_t { f32 = 0, half_rows = 1, q8 = 2 };

constexpr uint32_t SUM_BLOCK = 32; // values that share a factor as q8

} // namespace mesh
