"""Describe a model's work in the words of mesh-server: operations that it tries, layers that it times.

A word names an operation with the types, row lengths and heads of the model (docs/native-backend.md). Layers
with the same words are of one kind, and each kind is timed once; so are the output, and attention over a
short and a long cache.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from meshd.model.cache import ContextShape, Hyperparameters
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.model.gguf import Header, TensorInfo
from meshd.model.layer_range import MAX_LAYERS
from meshd.wire.limits import MAX_OPERATIONS, MAX_TIMED, MAX_TIMED_BYTES

MAX_LENGTHS = 4  # row lengths for one operation and type: kernels differ by type, hardly by length
MAX_SHAPES = 3  # shapes of attention: layers with and without a window, for example
_MOST_NUMBER = 1 << 18  # limit of any number
_NOT_MULTIPLIED = ("conv", "lerp", "first", "rope_", "token_embd", "position_embd", "token_types")
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

# The operations of a trial without a model, for `meshd doctor`.
USUAL: tuple[str, ...] = (
    *(f"mul_mat:{kind}:4096" for kind in ("f16", "q4_0", "q8_0", "q4_k", "q6_k")),
    "get_rows:f32:4096",
    "set_rows:f16:1024",
    "rms_norm:4096",
    "rope:128:32:128",
    "flash_attn:f16:f16:128:128:32:8",
    "attention:f16:f16:128:128:32:8",
    "glu:8192",
    "sums:4096",
)


def operations(headers: Sequence[Header], shape: ContextShape) -> tuple[str, ...]:
    """Return the operations of the model with these headers and caches of `shape`, each once."""
    known = Hyperparameters(headers[0])
    tensors = [tensor for header in headers for tensor in header.tensors]
    words = [
        *_matrices(known, tensors),
        *_between(known, tensors),
        *_attention(known, shape),
        *_recurrent(known),
    ]
    return tuple(islice(dict.fromkeys(words), MAX_OPERATIONS))


def _word(name: str, *parts: str | int) -> Iterator[str]:
    """Yield the word, or nothing for numbers that no model has."""
    if all(isinstance(part, str) or 0 < part <= _MOST_NUMBER for part in parts):
        yield ":".join([name, *map(str, parts)])


def _matrices(known: Hyperparameters, tensors: Sequence[TensorInfo]) -> Iterator[str]:
    lengths: dict[tuple[str, str], list[int]] = {}
    tied = all(tensor.name != "output.weight" for tensor in tensors)
    for tensor in tensors:
        if not is_matrix(tensor) and not (tied and tensor.name == "token_embd.weight"):
            continue
        name = {2: "mul_mat", 3: "mul_mat_id"}.get(len(tensor.dims))
        if name is not None:
            found = lengths.setdefault((name, tensor.kind.name), [])
            if tensor.dims[0] not in found and len(found) < MAX_LENGTHS:
                found.append(tensor.dims[0])
    experts = (known.number("expert_count"), known.number("expert_used_count"))
    for (name, kind), found in lengths.items():
        for length in found:
            yield from _word(name, kind, length, *(experts if name == "mul_mat_id" else ()))
    if experts[0]:
        yield from _word("route", *experts)


def is_matrix(tensor: TensorInfo) -> bool:
    """Say whether the tensor is multiplied with the activations."""
    is_other = any(part in tensor.name for part in _NOT_MULTIPLIED)
    return tensor.name.endswith(".weight") and len(tensor.dims) in (2, 3) and not is_other


def _between(known: Hyperparameters, tensors: Sequence[TensorInfo]) -> Iterator[str]:
    names = {tensor.name for tensor in tensors}
    width = known.number("embedding_length")
    with_bias = any(name.endswith("_norm.bias") for name in names)
    yield from _word("norm" if with_bias else "rms_norm", width)
    gated = any(".ffn_gate." in name or ".ffn_gate_exps." in name for name in names)
    forward = [known.number("feed_forward_length"), known.number("expert_feed_forward_length")]
    forward += list((known.array("feed_forward_length") or ())[:1])
    for length in forward:
        yield from _word("glu" if gated else "activation", length)
    yield from _word("sums", width)
    yield from _word("get_rows", "f32", width)


def _attention(known: Hyperparameters, shape: ContextShape) -> Iterator[str]:
    for key, value, heads, cached in islice(_heads(known), MAX_SHAPES):
        if known.has("rope.dimension_count") or known.has("rope.freq_base"):
            turned = known.number("rope.dimension_count", key)
            yield from _word("rope", key, heads, min(turned, key))
        kinds = (shape.key_type, shape.value_type)
        if shape.flash_attention:
            yield from _word("flash_attn", *kinds, key, value, heads, cached)
        if not TENSOR_TYPE_NAMES[shape.value_type].quantized:  # otherwise only flash attention reads them
            yield from _word("attention", *kinds, key, value, heads, cached)
        for kind, length in zip(kinds, (key * cached, value * cached), strict=True):
            yield from _word("set_rows", kind, length)


def _heads(known: Hyperparameters) -> Iterator[tuple[int, int, int, int]]:
    """Yield the widths of key and value, the heads, and the cached heads; each combination once."""
    layers = min(known.number("block_count"), MAX_LAYERS)
    heads = known.per_layer("attention.head_count", layers, [0] * layers)
    cached = known.per_layer("attention.head_count_kv", layers, heads)
    found: dict[tuple[int, int, int, int], None] = {}
    for all_heads, own in zip(heads, cached, strict=True):
        if not all_heads or not own or all_heads % own:
            continue  # a layer that keeps a state instead
        usual = known.number("embedding_length") // all_heads
        key, value = (known.number(f"attention.{kind}_length", usual) for kind in ("key", "value"))
        found[key, value, all_heads, own] = None
        if known.has("attention.key_length_swa"):
            window = known.number("attention.key_length_swa")
            found[window, known.number("attention.value_length_swa", window), all_heads, own] = None
    yield from found


def _recurrent(known: Hyperparameters) -> Iterator[str]:
    width, head = known.number("embedding_length"), known.number("wkv.head_size")
    if head and known.architecture in ("rwkv6", "rwkv7", "arwkv7"):
        yield from _word("wkv6" if known.architecture == "rwkv6" else "wkv7", head, width // head)
    if known.has("shortconv.l_cache"):
        yield from _word("ssm_conv", known.number("shortconv.l_cache"), width)
    state, inner = known.number("ssm.state_size"), known.number("ssm.inner_size")
    groups, heads = known.number("ssm.group_count"), known.number("ssm.time_step_rank")
    if not state or not inner:
        return
    yield from _word("ssm_conv", known.number("ssm.conv_kernel"), inner + 2 * groups * state)
    if known.architecture.startswith("qwen3"):
        yield from _word("delta", state, groups, heads)
    elif not groups:
        yield from _word("ssm_scan", state, 1, inner, 1)
    elif heads and inner % heads == 0 and heads % groups == 0:
        yield from _word("ssm_scan", state, inner // heads, heads, groups)


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
