"""A model's memory needs on the devices that share it: bytes per layer, of input and output, for
computing, and the longest answer.

Classes of tensors follow `LLM_TENSOR_INFOS` of llama-arch.cpp: input tensors always lie on the serving node's
CPU, tensors of `blk.N` with layer N, output tensors with the last device unless moved by `-ot`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import pairwise

from meshd.base.errors import UserError
from meshd.base.units import MIB
from meshd.model.cache import ContextShape, Hyperparameters, ModelCache, model_cache
from meshd.model.gguf import Header, TensorInfo
from meshd.model.indivisible import why_indivisible
from meshd.model.layer_range import MAX_LAYERS

DEFAULT_CONTEXT = 8192  # tokens; longer contexts only on request, as their cache fills a machine
_BLOCK = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d{1,4})\.")
_INPUT = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.", "masked_embd")
_PLACED_OUTPUT = "output.weight"
_CUDA_ROW = 512  # ggml-cuda pads rows of quantized weights to this many elements
# The longest answer.
MOST_TOKENS = 1 << 31
_YARN = "yarn"
_CONTEXT_KEY = ".context_length"
_SCALES = ("--rope-scale", "--rope-freq-scale")
# The memory for computing.
PIPELINE_COPIES = 4
_FIXED_CPU = 32 * MIB
_FIXED_GPU = 64 * MIB


class TensorPlace(Enum):
    """The place of a tensor that belongs to no layer."""

    INPUT = auto()
    OUTPUT = auto()
    """The matrix that makes logits; in a tied model that is the input matrix."""
    OUTPUT_REST = auto()
    SHARED = auto()


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The scaling in the model's header. `original`: tokens before it was stretched, 0 if unknown."""

    kind: str = "linear"
    factor: float = 1.0
    original: int = 0


@dataclass(frozen=True, slots=True)
class Widths:
    """Sizes in elements that bound the intermediate results of one layer, for one token.

    `kv_heads`: key and value heads, each of which several of the `heads` may share; 0: not known.
    """

    embedding: int
    attention: int  # all query, key and value heads together
    heads: int
    feed_forward: int  # active ones only, for a mixture of experts
    experts: int
    state: int  # of a recurrent layer
    vocabulary: int
    kv_heads: int = 0


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """A model as a planner sees it. Sizes in bytes.

    `layers` and `padded_layers` have one entry per block; `padded_layers` includes CUDA's padding. `input` is
    what a step reads first, `embedding` its token matrix. `output` is the matrix that makes logits (the
    embedding again for tied models), `output_rest` the norm and other tensors beside it. `shared` is what
    every device may need. `indivisible` says why a layer cannot be computed by several workers at once.
    """

    name: str
    architecture: str
    trained_context: int
    layers: tuple[int, ...]
    padded_layers: tuple[int, ...]
    input: int
    embedding: int
    output: int
    tied: bool
    output_rest: int
    shared: int
    largest_elements: int
    cache: ModelCache
    widths: Widths
    scaling: RopeScaling = field(default_factory=RopeScaling)
    indivisible: str = ""

    @property
    def count(self) -> int:
        return len(self.layers)

    @property
    def weight_bytes(self) -> int:
        """The bytes of all tensors, each counted once."""
        return (
            sum(self.layers) + self.input + (0 if self.tied else self.output) + self.output_rest + self.shared
        )

    @property
    def default_context(self) -> int:
        return min(self.trained_context, DEFAULT_CONTEXT) if self.trained_context else DEFAULT_CONTEXT


def read_layers(headers: Sequence[Header], *, name: str) -> ModelLayers:
    """Read the sizes and the shape of a model from the headers of its shards; metadata comes from the first.

    Raises UserError if the file is no language model that llama-server could load.
    """
    # Check the metadata.
    header = headers[0]
    known = Hyperparameters(header)
    count = known.number("block_count")
    if not known.architecture or known.architecture == "clip":
        raise UserError(
            f"`{name}` is not a language model: its architecture is `{known.architecture or 'not given'}`",
            hint="give the model itself, not its projector (mmproj), adapter or vocabulary file",
        )
    if not 0 < count <= MAX_LAYERS:
        raise UserError(f"`{name}` claims to have {count} layers, expected 1 to {MAX_LAYERS}")
    # Sum up the tensors by place.
    tensors = [tensor for item in headers for tensor in item.tensors]
    layers, padded = [0] * count, [0] * count
    total_input = total_output = total_rest = shared = 0
    by_name = {tensor.name: tensor for tensor in tensors}
    for tensor in tensors:
        match place_of(tensor.name, count):
            case int(number):
                layers[number] += tensor.size
                padded[number] += tensor.size + _padding(tensor)
            case TensorPlace.OUTPUT:
                total_output += tensor.size
            case TensorPlace.INPUT:
                total_input += tensor.size
            case TensorPlace.SHARED:
                shared += tensor.size
            case TensorPlace.OUTPUT_REST:
                total_rest += tensor.size
    if not any(layers) or "token_embd.weight" not in by_name:
        raise UserError(
            f"`{name}` has no weights of a language model (tensors `token_embd.weight` and `blk.0.…`)",
            hint="give the model itself, not its projector (mmproj), adapter or vocabulary file",
        )
    # Without an output matrix the embedding takes its place.
    embedding = by_name["token_embd.weight"]
    tied = _PLACED_OUTPUT not in by_name
    return ModelLayers(
        name=name,
        architecture=known.architecture,
        trained_context=known.number("context_length"),
        layers=tuple(layers),
        padded_layers=tuple(padded),
        input=total_input,
        embedding=embedding.size,
        output=embedding.size if tied else total_output,
        tied=tied,
        output_rest=total_rest,
        shared=shared,
        largest_elements=max(_elements(tensor) for tensor in tensors),
        cache=model_cache(header, count),
        widths=_widths(known, count, embedding),
        scaling=read_scaling(known),
        indivisible=why_indivisible(known, tensors, count),
    )


def place_of(name: str, layers: int) -> int | TensorPlace:
    """Return the number of the layer that a tensor belongs to, or its other place."""
    match = _BLOCK.match(name)
    if match and int(match[1]) < layers:
        return int(match[1])
    if name == _PLACED_OUTPUT:
        return TensorPlace.OUTPUT
    if name.startswith(_INPUT):
        return TensorPlace.INPUT
    if name.startswith(("rope_", "token_embd_norm.")):
        return TensorPlace.SHARED
    return TensorPlace.OUTPUT_REST


def is_of_layer(name: str) -> bool:
    """Say whether a tensor of that name belongs to a layer, including layers that only predict tokens."""
    return _BLOCK.match(name) is not None


def _elements(tensor: TensorInfo) -> int:
    return tensor.size // tensor.kind.block_bytes * tensor.kind.block_elements


def _padding(tensor: TensorInfo) -> int:
    """Return the bytes that CUDA adds to a quantized matrix whose row length is no multiple of 512."""
    over = tensor.dims[0] % _CUDA_ROW if tensor.dims else 0
    if not tensor.kind.quantized or not over:
        return 0
    blocks = -(-(_CUDA_ROW - over) // tensor.kind.block_elements)
    return blocks * tensor.kind.block_bytes


def _widths(known: Hyperparameters, count: int, embedding: TensorInfo) -> Widths:
    width = known.number("embedding_length") or (embedding.dims[0] if embedding.dims else 0)
    heads = known.per_layer("attention.head_count", count, [0] * count)
    kv_heads = known.per_layer("attention.head_count_kv", count, heads)
    most = max(heads)
    key = max(known.number("attention.key_length", width // most if most else 0), *_lengths(known, "key"))
    value = max(
        known.number("attention.value_length", width // most if most else 0), *_lengths(known, "value")
    )
    used = max(known.per_layer("expert_used_count", count, [0] * count))
    expert_width = max(known.per_layer("expert_feed_forward_length", count, [0] * count))
    dense = max(known.per_layer("feed_forward_length", count, [0] * count))
    shared = (
        known.number("expert_shared_feed_forward_length") + known.number("expert_shared_count") * expert_width
    )
    vocabulary = embedding.dims[1] if len(embedding.dims) > 1 else known.number("vocab_size")
    return Widths(
        embedding=width * max(1, used // 2),  # the outputs of the experts are kept until they are summed
        attention=most * (key + value) + max(kv_heads) * (key + value),
        heads=most,
        feed_forward=max(dense, used * (expert_width or dense) + shared),
        experts=known.number("expert_count"),
        state=max((layer.state for layer in model_cache(known.header, count).layers), default=0),
        vocabulary=vocabulary,
        kv_heads=max(kv_heads),
    )


def _lengths(known: Hyperparameters, kind: str) -> tuple[int, int]:
    return known.number(f"attention.{kind}_length_swa"), known.number(f"attention.{kind}_length_mla")


def read_scaling(known: Hyperparameters) -> RopeScaling:
    """Read the scaling from the header; invalid numbers count as absent."""
    name, header = known.architecture, known.header
    factor = header.metadata.get(f"{name}.rope.scaling.factor")
    return RopeScaling(
        kind=header.text(f"{name}.rope.scaling.type") or "linear",
        factor=float(factor) if isinstance(factor, int | float) and 0 < factor < MOST_TOKENS else 1.0,
        original=known.number("rope.scaling.original_context_length"),
    )


def longest_answer(trained: int, scaling: RopeScaling, llama_args: Sequence[str]) -> int:
    """Return the maximum tokens of an answer with its prompt; 0: the header does not say.

    That is the trained context unless the user stretches it, as in `n_ctx_slot` of server-context.cpp and
    `llama_init_from_model` of the pinned commit. A longer context is not used, though its memory is spent.
    YaRN with another scale than the model's own moves the limit; linear scaling (`--rope-scale` alone) does
    not.

    `llama_args` are the user's options after `--`. A value that llama-server would refuse counts as absent.
    """
    options = [(_name(option), value) for option, value in pairwise(llama_args)]
    kind, scale, original = scaling.kind, 1 / scaling.factor, float(scaling.original)
    for name, value in options:  # the last option counts
        if name == "--override-kv":
            trained = _overridden(value, trained)
        elif name == "--rope-scaling":
            kind = value
        elif name in _SCALES and (number := _positive(value)):
            scale = number if name == "--rope-freq-scale" else 1 / number
        elif name == "--yarn-orig-ctx":
            original = _positive(value) or original
    if kind != _YARN or scale == 1 / scaling.factor:
        return trained
    return int(min((original or trained) / scale, MOST_TOKENS - 1))


def _name(option: str) -> str:
    return option.replace("_", "-") if option.startswith("--") else option


def _positive(text: str) -> float:
    """Return the number, or 0 if it is not a valid positive one."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if 0 < number < MOST_TOKENS else 0.0


def _overridden(text: str, trained: int) -> int:
    """Return N of `ARCHITECTURE.context_length=int:N`, one of several behind commas, or else `trained`."""
    for part in text.split(","):
        key, _, value = part.partition("=")
        if key.endswith(_CONTEXT_KEY) and value.startswith("int:"):
            trained = int(_positive(value.removeprefix("int:"))) or trained
    return trained


def compute_bound(
    model: ModelLayers,
    shape: ContextShape,
    *,
    on_gpu: bool,
    with_layers: bool,
    with_output: bool,
    pipelined: bool,
) -> int:
    """Return an upper bound in bytes for the memory that llama.cpp computes in on one device.

    llama.cpp reserves one buffer on each device for the largest step (`n_ubatch` tokens over a full cache,
    `llama_context::sched_reserve`); its exact size comes out of the graph allocator. The bound counts what
    can be alive at once, with T tokens a step and N cells of a stream, among which the tokens are divided:

        inputs  = copies x (T x N x mask + 3 x 4 x T x n_embd)    mask: 2 (f16) with flash attention, else 4;
                                                                  twice with windowed layers
        layer   = 4 x T x (8 n_embd + 4 (q + k + v + result) + 4 n_ff + 4 n_expert) + 64 x state
        scores  = 5 x T x N x n_head                              only without flash attention
        output  = 4 x outputs x (2 n_vocab + n_embd)              outputs: one a sequence in llama-server,
                                                                  and those that it drafts
        fixed   = 32 MiB, on a GPU 64 MiB + 2 x elements of the largest tensor (it may be unpacked to f16)

    `copies` is 4 with pipeline parallelism (GGML_SCHED_MAX_COPIES), else 1. Measured with SmolLM2 at 8192
    tokens and 512 a step, by device: 20 MiB, bound 76 MiB with flash attention, 165 MiB, bound 264 MiB
    without.
    """
    # inputs
    widths = model.widths
    tokens = shape.step_tokens
    mask = tokens * shape.cells * (2 if shape.flash_attention else 4)
    if any(layer.window for layer in model.cache.layers):
        mask *= 2
    bound = (PIPELINE_COPIES if pipelined else 1) * (mask + 12 * tokens * widths.embedding)
    # layer, and scores
    if with_layers:
        elements = 8 * widths.embedding + 4 * (widths.attention + widths.feed_forward + widths.experts)
        bound += 4 * tokens * elements + 64 * widths.state
        if not shape.flash_attention:
            bound += 5 * tokens * shape.cells * widths.heads
    # output, and fixed
    if with_output:
        bound += 4 * shape.outputs * (2 * widths.vocabulary + widths.embedding)
    if on_gpu:
        return bound + _FIXED_GPU + 2 * model.largest_elements
    return bound + _FIXED_CPU
