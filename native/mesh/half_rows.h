// Rows of F32 as half floats on the wire: of each row an exponent e of two, then its values divided by 2^e as halves.
// e is the least with which all finite values of the row fit, and 0 unless one is beyond what a half can be.
#pragma once

#include "blob.h"
#include "protocol.h"

namespace mesh {

// Bytes that `size` bytes of a buffer take on the wire: as they are if `row`, the values of a row, is 0. Throws
// bad_message if they are no whole rows
uint64_t bytes_on_wire(uint64_t size, uint32_t row);
// Bytes of a buffer that have come as so many. Throws bad_message if they are no whole rows, or more than a piece
uint64_t bytes_in_buffer(uint64_t size, uint32_t row);

// Values to half rows. `size` in bytes of values, whole rows, in memory of any alignment
void to_half_rows(const void * values, uint64_t size, uint32_t row, uint8_t * halves);
// `size` is again that of the values. false: an exponent is too large
bool from_half_rows(const uint8_t * halves, uint64_t size, uint32_t row, void * values);

// The same of whole pieces, if row is not 0. Throws bad_message for an exponent that is too large
blob on_wire(blob piece, uint32_t row);
blob in_buffer(blob piece, uint32_t row);
// What these half rows stand for; row is not 0
blob values_of(const uint8_t * halves, uint64_t size, uint32_t row);

} // namespace mesh
