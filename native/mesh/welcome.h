// What a worker says that it has.
#pragma once

#include "buffers.h"
#include "wire.h"

namespace mesh {

// The body of WELCOME; `neighbours` by their places in the head's list
blob make_welcome(
    const std::vector<lent_device> & devices, const buffers & memory, const std::vector<uint32_t> & neighbours);

} // namespace mesh
