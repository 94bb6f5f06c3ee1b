// A hostile neighbour: frames of pushes over a socket, valid to some place and damaged there.
#pragma once

#include <cstdint>
#include <string>

// What went wrong, or "": all that came before the damage has to be taken, and nothing after it. Counts its frames
std::string neighbour_session(uint64_t seed, uint64_t & frames);
