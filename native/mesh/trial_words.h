// A word for an operation of a trial, such as `mul_mat:q4_0:576`: a name, then the types and numbers that it needs.
#pragma once

#include "trial_operations.h"

namespace mesh {

// nullptr: it is not known here, or its numbers make no sense
const trial_operation * parse_trial(const std::string & word, trial_numbers & asked);

} // namespace mesh
