"""Find what of a model llama.cpp cannot divide among workers that compute each layer together.

Its Meta device (`ggml-backend-meta.cpp`, `llama_meta_device_get_split_state`) ends llama-server there, or
computes something else. Each rule was seen to (docs/decisions/0092).
"""

import re
from collections.abc import Iterable

from meshd.model.cache import Hyperparameters
from meshd.model.gguf import TensorInfo

_DIVIDED_ROWS = re.compile(r"^blk\.\d+\.(?:attn_output|ffn_down(?:_exps)?)\.weight$")
_MAY_BE_TWO = re.compile(r"^blk\.(\d{1,4})\.ffn_up(?:_exps)?\.weight$")


def why_indivisible(known: Hyperparameters, tensors: Iterable[TensorInfo], count: int) -> str:
    """Return why the `count` layers of a model cannot be divided; empty: nothing is known against that."""
    heads = known.per_layer("attention.head_count", count, [0] * count)
    if 1 in known.per_layer("attention.head_count_kv", count, heads):
        # A head is never divided, and without heads to tell apart, some shapes look as if it were.
        return "its attention has a single head of keys and values"
    inner = known.per_layer("feed_forward_length", count, [0] * count)
    for tensor in tensors:
        # A row of one block is as long as a block, so a worker without any of it is not seen to have none.
        if _DIVIDED_ROWS.match(tensor.name) and tensor.dims[:1] == (tensor.kind.block_elements,):
            return f"a row of `{tensor.name}` is a single block of {tensor.kind.name}"
        # Twice as many rows as are said are taken for two matrices: the results are wrong.
        two = _MAY_BE_TWO.match(tensor.name)
        if two and int(two[1]) < count and tensor.dims[1:2] == (2 * inner[int(two[1])],):
            return f"`{tensor.name}` looks like two matrices"
    return ""
