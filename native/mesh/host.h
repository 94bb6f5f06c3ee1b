// The llama.cpp that has loaded this module, which must be the one that it was compiled for.
#pragma once

#include <string>

namespace mesh {

// The version of its ggml; empty where it cannot be seen: a static program shows its symbols to nobody
std::string host_ggml();

} // namespace mesh
