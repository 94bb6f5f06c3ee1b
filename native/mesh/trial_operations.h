// The operations of which a trial makes graphs.
#pragma once

#include "trial_graph.h"

#include <string>

namespace mesh {

// What stands behind the name of an operation
struct trial_numbers {
    std::vector<ggml_type> types;
    std::vector<int64_t> n;
};

struct trial_operation {
    size_t types; // so many of each it needs
    size_t numbers;
    bool in_rows; // the first number is the length of rows of the first type
    // false: the numbers make no sense
    bool (*build)(trial_graph & graph, const trial_numbers & asked);
};

// nullptr: it is not known here
const trial_operation * find_trial_operation(const std::string & name);

} // namespace mesh
