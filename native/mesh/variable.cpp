#include "variable.h"

#include <cstdlib>
#include <stdexcept>

namespace mesh {

std::string variable(const char * name) {
    const char * value = std::getenv(name);
    return value == nullptr ? "" : value;
}

uint32_t number_of_variable(const char * name, const char * unit, uint32_t most) {
    const char * text = std::getenv(name);
    if (text == nullptr) {
        return 0;
    }
    char * end = nullptr;
    const long long value = std::strtoll(text, &end, 10);
    if (end == text || *end != '\0' || value < 0 || value > most) {
        throw std::runtime_error(
            std::string(name) + " is a number of " + unit + " up to " + std::to_string(most) + ", not `" + text + "`");
    }
    return static_cast<uint32_t>(value);
}

} // namespace mesh
