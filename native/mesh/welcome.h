// What a worker says that it has.
#pragma once

#include "buffers.h"
#include "wire.h"

namespace mesh {

// The body of WELCOME
blob make_welcome(const std::vector<lent_device> & devices, const buffers & memory);

// That of MET: neighbours, by their places in the head's list. They may come a round trip later than HELLO, and the
// head has weights loaded meanwhile
blob make_met(const std::vector<uint32_t> & neighbours);

} // namespace mesh
