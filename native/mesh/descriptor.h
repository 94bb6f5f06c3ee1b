// Descriptors that the parent process hands over: by number, 3 or higher.
#pragma once

#include <cstddef>
#include <string>

namespace mesh {

// false: not the number of a descriptor that can have been handed over. Children of ours do not get it
bool parse_descriptor(const std::string & text, int & descriptor);

// Reads it to its end and closes it; 30 s without a byte are a failure. Throws std::runtime_error
std::string read_text(int descriptor, size_t most);

} // namespace mesh
