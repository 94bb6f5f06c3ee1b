// Lines for the parent process, at a descriptor that it hands over. A parent that does not read them misses them.
#pragma once

#include <string>

namespace mesh {

// Takes over the descriptor
void open_report(int descriptor);

// One line: a word, and whatever comes behind it, printable; cut at 512 bytes
void report(const std::string & line);

} // namespace mesh
