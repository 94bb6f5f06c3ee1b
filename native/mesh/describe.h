// What a program or module of this source is, as one line of JSON.
#pragma once

#include <string>

namespace mesh {

// `more`: further fields
std::string describe(const char * what);

} // namespace mesh
