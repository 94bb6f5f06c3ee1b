// Text that somebody else has chosen, for terminals and lines: a byte that is no printable ASCII becomes \xNN.
#pragma once

#include <string>

namespace mesh {

inline std::string printable(const std::string & text) {
    static const char DIGITS[] = "0123456789abcdef";
    std::string shown;
    for (const char one : text) {
        const auto byte = static_cast<unsigned char>(one);
        if (byte >= ' ' && byte <= '~') {
            shown += one;
        } else {
            shown += { '\\', 'x', DIGITS[byte >> 4], DIGITS[byte & 15] };
        }
    }
    return shown;
}

} // namespace mesh
