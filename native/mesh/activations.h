// Which values are hidden states, and so cross as half floats where that was asked for by GGML_MESH_ACTIVATIONS=f16.
#pragma once

#include "ggml.h"

#include <cstdint>
#include <string>

namespace mesh {

// f32 (as they are), f16, or nothing, which is f32. Throws std::runtime_error for anything else
void choose_activations(const std::string & kind);

// Whether this is a hidden state. It decides by the source of a copy, which is what one part of the graph computed and
// another takes in. What the user sets (masks, positions), weights, caches and states are none: they are no results, or
// not in the memory of a graph. Nor are logits, and what samplers make of them. What the user reads of a result is not
// copied, and does not come here.
bool is_activation(const ggml_tensor * tensor);
bool is_logits(const ggml_tensor * tensor); // all of them, as a model computes them

// The values of a row if this tensor is to cross as half rows, else 0
uint32_t row_of_activation(const ggml_tensor * tensor);

} // namespace mesh
