// What the parent process says in the environment.
#pragma once

#include <cstdint>
#include <string>

namespace mesh {

// "" without it
std::string variable(const char * name);

// A number up to `most`; 0 without the variable. `unit` is for the message. Throws std::runtime_error for anything else
uint32_t number_of_variable(const char * name, const char * unit, uint32_t most);

} // namespace mesh
