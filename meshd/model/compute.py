"""An upper bound for the memory that llama.cpp computes in, per device.

llama.cpp reserves one buffer on each device for the largest step (`n_ubatch` tokens over a full cache,
`llama_context::sched_reserve`); its exact size comes out of the graph allocator. The bound counts what can be
alive at once, in bytes, with T tokens a step and N cells of a stream, among which the tokens are divided:

    inputs  = copies x (T x N x mask + 3 x 4 x T x n_embd)    mask: 2 (f16) with flash attention, else 4;
                                                              twice with windowed layers
    layer   = 4 x T x (8 n_embd + 4 (q + k + v + result) + 4 n_ff + 4 n_expert) + 64 x state
    scores  = 5 x T x N x n_head                              only without flash attention
    output  = 4 x outputs x (2 n_vocab + n_embd)              outputs: one a sequence in llama-server,
                                                              and those that it drafts
    fixed   = 32 MiB, on a GPU 64 MiB + 2 x elements of the largest tensor (it may be unpacked to f16)

`copies` is 4 with pipeline parallelism (GGML_SCHED_MAX_COPIES), else 1. Measured with SmolLM2 at 8192 tokens
and 512 a step, by device: 20 MiB, bound 76 MiB with flash attention, 165 MiB, bound 264 MiB without.
"""

from meshd.base.units import MIB
from meshd.model.cache import ContextShape
from meshd.model.layers import ModelLayers

PIPELINE_COPIES = 4
_FIXED_CPU = 32 * MIB
_FIXED_GPU = 64 * MIB


def compute_bound(
    model: ModelLayers,
    shape: ContextShape,
    *,
    on_gpu: bool,
    with_layers: bool,
    with_output: bool,
    pipelined: bool,
) -> int:
    """Return the upper bound in bytes for one device, by the formula above."""
    widths = model.widths
    tokens = shape.step_tokens
    mask = tokens * shape.cells * (2 if shape.flash_attention else 4)
    if any(layer.window for layer in model.cache.layers):
        mask *= 2
    bound = (PIPELINE_COPIES if pipelined else 1) * (mask + 12 * tokens * widths.embedding)
    if with_layers:
        elements = 8 * widths.embedding + 4 * (widths.attention + widths.feed_forward + widths.experts)
        bound += 4 * tokens * elements + 64 * widths.state
        if not shape.flash_attention:
            bound += 5 * tokens * shape.cells * widths.heads
    if with_output:
        bound += 4 * shape.outputs * (2 * widths.vocabulary + widths.embedding)
    if on_gpu:
        return bound + _FIXED_GPU + 2 * model.largest_elements
    return bound + _FIXED_CPU
