// Where a head keeps small results of a graph. ggml's allocator takes the layout of the graph before where nodes and
// sizes are the same (ggml_gallocr_needs_realloc), and does not look at which nodes are results. Samplers on a device
// differ in just that: one that is idle in this round leaves its candidates free to be overwritten, and in the next
// round they are read. So small results have places of their own, which no layout has.
#pragma once

#include "blob.h"

#include "ggml.h"

#include <cstdint>
#include <unordered_map>

namespace mesh {

struct client_device;

constexpr uint64_t RESULTS_BYTES = 1 << 18; // of a device; a graph has tens of results of some hundred bytes

// Places of a graph's small results, from its first one on
struct set_aside {
    std::unordered_map<const ggml_tensor *, uint64_t> places;
    uint64_t size = 0;
};

// Those of this graph. The connection's order is held
set_aside results_of(client_device & device, const ggml_cgraph * graph);

// Has the device's buffer for results allocated, if it is not. false: there is no memory for it
bool has_room(client_device & device);

// Where the places of these begin in that buffer, behind those of the graph before: two parts of one graph share none
uint64_t next_place(client_device & device, const set_aside & results);

// Notes where the results of this graph are from now on. The connection's order is held
void note_results(client_device & device, const ggml_cgraph * graph, const set_aside & results, uint64_t first);

// The tensor whose memory this is
const ggml_tensor * base_of(const ggml_tensor * tensor);

// A place in the memory of a worker
struct remote_place {
    uint32_t buffer;
    uint64_t offset;
};

// Where this tensor is, which is on a worker
remote_place place_of(const ggml_tensor * tensor);

} // namespace mesh
