// The choice of experts, which devices (CUDA, HIP, Vulkan, SYCL) fuse: one kernel takes the place of the nodes from the
// scores to the chosen experts' weights. Of what these nodes write, the kernel writes the chosen places and their
// weights alone, and it asks less of them than each of their own kernels would.
#pragma once

#include "ggml.h"

struct ggml_cgraph;

namespace mesh {

// The places in the result of this node, a sort, if a device may write no others; nullptr: it writes all
const ggml_tensor * only_places(const ggml_cgraph * graph, int sort);

// Counts anew who uses each node, where the head has said less. What follows a sort and is no choice as models have it
// gets one use more than there are, so that no device fuses it: they do that only if they see all uses.
void correct_uses(ggml_cgraph * graph);

} // namespace mesh
