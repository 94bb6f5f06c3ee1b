"""The operations that a model needs from a device, as `mesh-server --try` names them.

Each has the types, row lengths and heads of the model. Their meaning: docs/native-backend.md.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from meshd.model.cache import ContextShape, Hyperparameters
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.model.gguf import Header, TensorInfo
from meshd.model.layer_range import MAX_LAYERS
from meshd.wire.limits import MAX_OPERATIONS

MAX_LENGTHS = 4  # row lengths for one operation and type: kernels differ by type, hardly by length
MAX_SHAPES = 3  # shapes of attention: layers with and without a window, for example
_MOST_NUMBER = 1 << 18  # limit of any number
_NOT_MULTIPLIED = ("conv", "lerp", "first", "rope_", "token_embd", "position_embd", "token_types")

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
