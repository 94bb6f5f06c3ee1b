// Valid graphs for the fuzzer: one operation of each kind that the server allows, made by ggml's own constructors.
#pragma once

#include "dice.h"

#include "ggml.h"

#include <cstdint>
#include <vector>

// A tensor of indices that a kernel trusts: each must be below limit
struct index_tensor {
    ggml_tensor * tensor;
    int64_t limit;
};

// How many kinds of operations there are
int n_operations();

// Makes one of kind `which`, with whatever it needs, in ctx. before is a node to work on, if its shape fits; or null.
ggml_tensor * make_operation(
    ggml_context * ctx, dice & d, int which, ggml_tensor * before, std::vector<index_tensor> & indices);
