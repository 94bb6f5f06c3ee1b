#include "half_rows.h"

#include "wire.h"

#include "ggml.h"

#include <algorithm>
#include <cmath>

namespace mesh {

static constexpr float HALF_MAX = 65504.0f;
static constexpr uint32_t NOT_FINITE = 0x7f800000; // the least bits, without the sign, of such a float

static uint64_t row_bytes(uint32_t row) {
    return sizeof(float) * static_cast<uint64_t>(row);
}

static uint64_t half_row_bytes(uint32_t row) {
    return sizeof(uint16_t) * (static_cast<uint64_t>(row) + 1);
}

// Also where there is nothing: a whole row is held while it is converted
static void check_row(uint32_t row) {
    if (row_bytes(row) > PIECE_BYTES) {
        throw bad_message("half floats with a row of more than a piece");
    }
}

uint64_t bytes_on_wire(uint64_t size, uint32_t row) {
    if (row == 0) {
        return size;
    }
    check_row(row);
    if (size % row_bytes(row) != 0) {
        throw bad_message("a part of a row cannot go as half floats");
    }
    return size / row_bytes(row) * half_row_bytes(row);
}

uint64_t bytes_in_buffer(uint64_t size, uint32_t row) {
    if (row == 0) {
        return size;
    }
    check_row(row);
    if (size % half_row_bytes(row) != 0) {
        throw bad_message("half floats that are no whole rows");
    }
    const uint64_t values = size / half_row_bytes(row) * row_bytes(row);
    if (values > PIECE_BYTES) {
        throw bad_message("half floats of more than a piece");
    }
    return values;
}

static uint16_t exponent_of(const std::vector<float> & values) {
    uint32_t most = 0; // floats of one sign are in the order of their bits
    for (const float & value : values) {
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        bits &= 0x7fffffff;
        most = std::max(most, bits < NOT_FINITE ? bits : 0);
    }
    float size;
    std::memcpy(&size, &most, sizeof size);
    uint16_t exponent = 0;
    while (std::ldexp(size, -exponent) > HALF_MAX && exponent < HALF_EXPONENT) {
        exponent++;
    }
    return exponent;
}

// The last thousandth of what a float can be is beyond the last exponent
static float scaled(float value, int exponent) {
    const float small = std::ldexp(value, -exponent);
    return std::isfinite(small) ? std::min(std::max(small, -HALF_MAX), HALF_MAX) : small;
}

void to_half_rows(const void * values, uint64_t size, uint32_t row, uint8_t * halves) {
    std::vector<float> one(row);
    std::vector<ggml_fp16_t> words(row);
    const auto * next = static_cast<const uint8_t *>(values);
    for (uint64_t left = size; left >= row_bytes(row); left -= row_bytes(row)) {
        std::memcpy(one.data(), next, row_bytes(row));
        next += row_bytes(row);
        const uint16_t exponent = exponent_of(one);
        if (exponent > 0) {
            for (float & value : one) {
                value = scaled(value, exponent);
            }
        }
        ggml_fp32_to_fp16_row(one.data(), words.data(), row);
        std::memcpy(halves, &exponent, sizeof exponent);
        std::memcpy(halves + sizeof exponent, words.data(), sizeof(uint16_t) * row);
        halves += half_row_bytes(row);
    }
}

bool from_half_rows(const uint8_t * halves, uint64_t size, uint32_t row, void * values) {
    std::vector<float> one(row);
    std::vector<ggml_fp16_t> words(row);
    auto * next = static_cast<uint8_t *>(values);
    for (uint64_t left = size; left >= row_bytes(row); left -= row_bytes(row)) {
        uint16_t exponent;
        std::memcpy(&exponent, halves, sizeof exponent);
        if (exponent > HALF_EXPONENT) {
            return false;
        }
        std::memcpy(words.data(), halves + sizeof exponent, sizeof(uint16_t) * row);
        halves += half_row_bytes(row);
        ggml_fp16_to_fp32_row(words.data(), one.data(), row);
        if (exponent > 0) {
            for (float & value : one) {
                value = std::ldexp(value, exponent);
            }
        }
        std::memcpy(next, one.data(), row_bytes(row));
        next += row_bytes(row);
    }
    return true;
}

blob on_wire(blob piece, uint32_t row) {
    if (row == 0) {
        return piece;
    }
    blob halves(bytes_on_wire(piece.size(), row));
    to_half_rows(piece.data(), piece.size(), row, halves.data());
    return halves;
}

blob values_of(const uint8_t * halves, uint64_t size, uint32_t row) {
    blob values(bytes_in_buffer(size, row));
    if (!from_half_rows(halves, values.size(), row, values.data())) {
        throw bad_message("half floats with an exponent that there is not");
    }
    return values;
}

blob in_buffer(blob piece, uint32_t row) {
    return row == 0 ? std::move(piece) : values_of(piece.data(), piece.size(), row);
}

} // namespace mesh
