// A word for an operation of a trial, such as `mul_mat:q4_0:576`: a name, then the types and numbers that it needs.
#pragma once

#include "trial_operations.h"

namespace mesh {

// Its parts, empty ones as well; at least one
std::vector<std::string> split_word(const std::string & word, char at = ':');

std::string join_word(const std::vector<std::string> & parts);

// From 1 on, and below the largest that a model has
bool parse_number(const std::string & text, int64_t & number);

// nullptr: it is not known here, or its numbers make no sense
const trial_operation * parse_trial(const std::string & word, trial_numbers & asked);

} // namespace mesh
