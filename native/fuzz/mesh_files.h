// A small file with tensors, which the worker has: what LOAD and LOAD_PARTS name by its hash is read from it.
#pragma once

#include "weights_index.h"

static constexpr uint32_t FILE_TENSORS = 3;

const mesh::weights_index & indexed_file();
