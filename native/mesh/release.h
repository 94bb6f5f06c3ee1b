// The release of ggml that this is compiled against, which head and worker must have alike.
#pragma once

#include "ggml.h"

#include <string>

namespace mesh {

inline std::string ggml_release() {
    return ggml_version();
}

} // namespace mesh
