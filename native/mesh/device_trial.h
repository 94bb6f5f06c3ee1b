// Whether a device computes what a model needs, before it is lent: small graphs, there and on the CPU, compared.
#pragma once

#include "ggml-backend.h"

#include <functional>
#include <string>
#include <vector>

namespace mesh {

// The lines that docs/native-backend.md has under "The trial of a device", one by one, and the exit code: 0, or 2 if
// something was wrong. `tolerance` multiplies the errors that are taken
int try_device(ggml_backend_dev_t device, const std::vector<std::string> & words, double tolerance,
    const std::function<void(const std::string &)> & tell);

} // namespace mesh
