// Whether a node of a graph from the wire may be given to a kernel.
#pragma once

#include "ggml.h"

namespace mesh {

// Whether there is a check for each operation of the schema that computes something: for tests
bool all_operations_have_checks();

// It computes nothing: a leaf, or a view
bool computes_nothing(const ggml_tensor * node);

// Whether this node is an operation of the schema, and its sources, parameters and shapes are as the operation wants
// them. Says nothing about where the data is. Throws bad_message.
void check_operation(const ggml_tensor * node);

// Whether the result of this node lies apart from its sources, or exactly on one where that is allowed: a kernel that
// writes over what it still reads goes by indices, or an order, that it has not checked. Throws bad_message.
void check_overlap(const ggml_tensor * node);

} // namespace mesh
