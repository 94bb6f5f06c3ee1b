// Reading and writing little endian values with their limits checked. What breaks a rule of the protocol throws
// bad_message, with a reason that may be told to the other side.
#pragma once

#include "blob.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "values are copied as they lie in memory, which has to be little endian"
#endif

namespace mesh {

struct bad_message : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What was computed cannot be computed with: by whom, only the head can find out. It knows these words
// (meshd/head/leases.py), because whoever says them need not be at fault
struct bad_value : bad_message {
    explicit bad_value(const std::string & why) : bad_message("wrong value: " + why) {}
};

// A window of received bytes that gets shorter from its beginning. Does not own them.
class reader {
public:
    reader(const uint8_t * data, size_t size) : at(data), left(size) {}
    explicit reader(const blob & data) : reader(data.data(), data.size()) {}

    template <class T> void take(T & value) { std::memcpy(&value, bytes(sizeof value), sizeof value); }
    template <class T, size_t N> void take_all(T (&values)[N]) {
        std::memcpy(values, bytes(sizeof values), sizeof values);
    }

    // What is reserved
    template <class T> void take_zero(T & value) {
        take(value);
        if (value != 0) {
            throw bad_message("a reserved field is not 0");
        }
    }

    // The next so many bytes, which stay where they are
    const uint8_t * bytes(size_t size) {
        if (size > left) {
            throw bad_message("a message is shorter than it says");
        }
        const uint8_t * found = at;
        at += size;
        left -= size;
        return found;
    }

    size_t size() const { return left; }

    // Nothing may be left
    void end() const {
        if (left != 0) {
            throw bad_message("a message is longer than it says");
        }
    }

private:
    const uint8_t * at;
    size_t left;
};

// Bytes that get longer at their end.
class writer {
public:
    blob data;

    template <class T> void put(T value) { put_bytes(&value, sizeof value); }
    template <class T, size_t N> void put_all(const T (&values)[N]) { put_bytes(values, sizeof values); }
    void put_bytes(const void * bytes, size_t size) {
        const size_t at = data.size();
        data.resize(at + size);
        if (size > 0) {
            std::memcpy(data.data() + at, bytes, size);
        }
    }
    void put_text(const std::string & text) { put_bytes(text.data(), text.size()); }
};

// A name of fixed size, padded with zeros; what is longer is cut.
template <size_t N> void set_name(uint8_t (&target)[N], const char * name) {
    std::memset(target, 0, N);
    std::memcpy(target, name, std::min(std::strlen(name), N - 1));
}

template <size_t N> std::string name_of(const uint8_t (&source)[N]) {
    const auto * text = reinterpret_cast<const char *>(source);
    return std::string(text, strnlen(text, N));
}

} // namespace mesh
