// The schema's numbers of operations, types and kinds, and ggml's: found by name once, as each release numbers anew.
#pragma once

#include "protocol.h"

#include "ggml.h"

namespace mesh {

constexpr uint32_t NO_NUMBER = UINT32_MAX;

// NO_NUMBER: the schema does not have it
uint32_t number_of_operation(ggml_op op);
uint32_t number_of_type(ggml_type type);

// false: this release of ggml does not have it
bool operation_of_number(uint32_t number, ggml_op & op);
bool type_of_number(uint32_t number, ggml_type & type);

// Translates the kind that is the first parameter of some operations, to or from the schema's number. false: unknown
bool kind_to_wire(ggml_op op, int32_t & kind);
bool kind_from_wire(ggml_op op, int32_t & kind);

} // namespace mesh
