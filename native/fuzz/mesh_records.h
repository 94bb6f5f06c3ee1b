// A worker that seals records for another one, and somebody between the two who changes what passes.
#pragma once

#include "dice.h"

#include <string>

// Empty, or what went wrong. Adds the records that were delivered
std::string records_session(uint64_t seed, uint64_t & records);
