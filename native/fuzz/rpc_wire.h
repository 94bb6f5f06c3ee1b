// Tensors and frames as they are on the wire: the structures are those of the server itself.
#pragma once

#include "dice.h"
#include "rpc-messages.h" // made from the patched source

#include <vector>

// Makes one field of t wrong, or another right one. odd is a number from nowhere, ids are those that there are
void damage_tensor(dice & d, rpc_tensor & t, uint64_t odd, const std::vector<uint64_t> & ids);

std::vector<uint8_t> packed(uint8_t cmd, uint64_t length, const void * data, size_t size);

// A small tensor of F32 at this address
rpc_tensor plain_tensor(dice & d, uint64_t buffer, uint64_t data);

uint64_t size_of(const rpc_tensor & t);

rpc_tensor wire_tensor(const ggml_tensor * t);

// Whatever t needs, and then t
void collect(ggml_tensor * t, std::vector<ggml_tensor *> & tensors);
