"""Describe the work of a model's layers in words with which mesh-server measures a device's speed.

A word names an operation with the types and sizes of the model (docs/native-backend.md). Layers with the same
words are of one kind, and each kind is timed once; so are the output, and attention over a short and a long
cache.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshd.model.cache import ContextShape, Hyperparameters
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.model.gguf import Header, TensorInfo
from meshd.model.operations import is_matrix, operations
from meshd.wire.limits import MAX_TIMED, MAX_TIMED_BYTES

NEAR_CELLS, FAR_CELLS = 256, 4096  # cells of the caches over which attention is timed
_MOST_COPIES = 32  # of a layer, limited by mesh-server
_MOST_LAYER_KINDS = 3  # quantisations use two, hybrid models three; further kinds are scaled by their bytes
_MOST_WORDS = 64
_UNSEEN = 155  # of these last cells the first token sees none, each further token one more
_CACHE_BYTES = 256 << 20  # all caches together: more than a processor's cache holds
_BLOCK = re.compile(r"^blk\.(\d{1,4})\.")
_RECURRENT = ("ssm_", "time_mix", "shortconv")
_OF_RECURRENT = ("ssm_conv", "ssm_scan", "wkv6", "wkv7", "delta")
_OF_ATTENTION = ("rope", "flash_attn", "set_rows")


@dataclass(frozen=True, slots=True)
class LayerWork:
    """The kinds of layers to time. `texts` are the arguments for `mesh-server --time`; other fields index it.

    `kinds` and `scales` have one entry per layer: its kind, and its size relative to that kind, by bytes.
    `output` is the matrix that makes logits; `near` and `far` are attention over NEAR_CELLS and FAR_CELLS.
    Each is None if the model has none.
    """

    texts: tuple[str, ...]
    kinds: tuple[int, ...]
    scales: tuple[float, ...]
    output: int | None = None
    near: int | None = None
    far: int | None = None


def layer_work(headers: Sequence[Header], shape: ContextShape, layers: int) -> LayerWork:
    """Return the work of the model with these headers (one per shard), which has `layers` layers."""
    # The tensors of each layer.
    common = operations(headers, shape)
    tensors = [tensor for header in headers for tensor in header.tensors]
    blocks: list[list[TensorInfo]] = [[] for _ in range(layers)]
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match and int(match[1]) < layers:
            blocks[int(match[1])].append(tensor)
    # The most frequent kinds of layers are timed.
    known = Hyperparameters(headers[0])
    words = [_words(block, common, known) for block in blocks]
    sizes = [sum(tensor.size for tensor in block) for block in blocks]
    counted = Counter(word for word in words if word)
    timed = [kind for kind, _ in counted.most_common(_MOST_LAYER_KINDS)]
    if not timed:
        return LayerWork((), (), ())
    texts = [_text(kind, counted[kind]) for kind in timed]
    bytes_of = [next(size for word, size in zip(words, sizes, strict=True) if word == kind) for kind in timed]
    # Each layer gets its kind, or is scaled from the nearest one.
    kinds, scales = [], []
    for word, size in zip(words, sizes, strict=True):
        kind = timed.index(word) if word in timed else _nearest(bytes_of, size)
        kinds.append(kind)
        scales.append(1.0 if word in timed else size / max(1, bytes_of[kind]))
    return _with_rest(LayerWork(tuple(texts), tuple(kinds), tuple(scales)), tensors, common)


def _with_rest(work: LayerWork, tensors: Sequence[TensorInfo], common: Sequence[str]) -> LayerWork:
    """Add output and attention behind the layers; return no work if the question would be too long."""
    texts = list(work.texts)
    by_name = {tensor.name: tensor for tensor in tensors}
    output = by_name.get("output.weight") or by_name.get("token_embd.weight")
    places: dict[str, int] = {}
    if output is not None and len(output.dims) == 2:
        places["output"] = len(texts)
        texts.append(f"1={_matrix(output, 0, 0)}")
    attention = next((word for word in common if word.startswith("flash_attn:")), None)
    if attention is not None:
        for name, cells in (("near", NEAR_CELLS), ("far", FAR_CELLS)):
            places[name] = len(texts)
            texts.append(f"{_caches(attention, cells)}={attention}:{cells}")
    if len(texts) > MAX_TIMED or any(len(text) > MAX_TIMED_BYTES for text in texts):
        return LayerWork((), (), ())
    return LayerWork(
        tuple(texts),
        work.kinds,
        work.scales,
        places.get("output"),
        places.get("near"),
        places.get("far"),
    )


def unseen_cells(tokens: float) -> float:
    """Return the mean number of cells that `tokens` computed at once do not see of a timed cache."""
    count = min(tokens, _UNSEEN)
    return count * (_UNSEEN - (count - 1) / 2) / max(1.0, tokens)


def _caches(attention: str, cells: int) -> int:
    """Return how many layers to time, each with its cache: rereading one cache would be much faster."""
    _, key_type, value_type, key, value, _, heads = attention.split(":")
    row = TENSOR_TYPE_NAMES[key_type].row_bytes(int(key) * int(heads))
    row += TENSOR_TYPE_NAMES[value_type].row_bytes(int(value) * int(heads))
    return max(1, min(_MOST_COPIES, _CACHE_BYTES // max(1, cells * row)))


def _nearest(sizes: Sequence[int], size: int) -> int:
    return min(range(len(sizes)), key=lambda at: abs(sizes[at] - size))


def _text(words: Sequence[str], layers: int) -> str:
    return f"{min(layers, _MOST_COPIES)}={','.join(words)}"


def _words(block: Sequence[TensorInfo], common: Sequence[str], known: Hyperparameters) -> tuple[str, ...]:
    """Return the words of one layer: its matrices, and the operations between them."""
    experts, used = known.number("expert_count"), known.number("expert_used_count")
    words = [_matrix(tensor, experts, used) for tensor in block if is_matrix(tensor)]
    if not words:
        return ()
    is_recurrent = any(part in tensor.name for tensor in block for part in _RECURRENT)
    has_experts = any(len(tensor.dims) == 3 for tensor in block)
    for word in common:
        name = word.partition(":")[0]
        if name in ("rms_norm", "norm"):
            words += [word, word]  # before attention, and before the feed-forward part
        elif name == "flash_attn" and not is_recurrent:
            words.append(f"{word}:{NEAR_CELLS}")
        elif (
            (name in _OF_ATTENTION and name != "flash_attn" and not is_recurrent)
            or (name in _OF_RECURRENT and is_recurrent)
            or (name == "route" and has_experts)
            or name in ("glu", "activation")
        ):
            words.append(word)
    return tuple(words[:_MOST_WORDS])


def _matrix(tensor: TensorInfo, experts: int, used: int) -> str:
    columns, rows = tensor.dims[0], tensor.dims[1]
    if len(tensor.dims) == 2:
        return f"mul_mat:{tensor.kind.name}:{columns}:{rows}"
    return f"mul_mat_id:{tensor.kind.name}:{columns}:{rows}:{max(1, experts)}:{max(1, used)}"
