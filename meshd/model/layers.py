"""A model's memory needs on the devices that share it: bytes per layer, of input and output, and widths.

Classes of tensors follow `LLM_TENSOR_INFOS` of llama-arch.cpp: input tensors always lie on the serving node's
CPU, tensors of `blk.N` with layer N, output tensors with the last device unless moved by `-ot`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from meshd.base.errors import UserError
from meshd.model.cache import Hyperparameters, ModelCache, model_cache
from meshd.model.gguf import Header, TensorInfo
from meshd.model.layer_range import MAX_LAYERS
from meshd.model.rope import RopeScaling, read_scaling

DEFAULT_CONTEXT = 8192  # tokens; longer contexts only on request, as their cache fills a machine
_BLOCK = re.compile(r"^(?:enc\.|dec\.)?blk\.(\d{1,4})\.")
_INPUT = ("token_embd.", "position_embd.", "token_types.", "per_layer_token_embd.", "masked_embd")
_PLACED_OUTPUT = "output.weight"
_CUDA_ROW = 512  # ggml-cuda pads rows of quantized weights to this many elements


class TensorPlace(Enum):
    """The place of a tensor that belongs to no layer."""

    INPUT = auto()
    OUTPUT = auto()
    """The matrix that makes logits; in a tied model that is the input matrix."""
    OUTPUT_REST = auto()
    SHARED = auto()


@dataclass(frozen=True, slots=True)
class Widths:
    """Sizes in elements that bound the intermediate results of one layer, for one token."""

    embedding: int
    attention: int  # all query, key and value heads together
    heads: int
    feed_forward: int  # active ones only, for a mixture of experts
    experts: int
    state: int  # of a recurrent layer
    vocabulary: int


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """A model as a planner sees it. Sizes in bytes.

    `layers` and `padded_layers` have one entry per block; `padded_layers` includes CUDA's padding. `input` is
    what a step reads first, `embedding` its token matrix. `output` is the matrix that makes logits (the
    embedding again for tied models), `output_rest` the norm and other tensors beside it. `shared` is what
    every device may need.
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
    )


def _lengths(known: Hyperparameters, kind: str) -> tuple[int, int]:
    return known.number(f"attention.{kind}_length_swa"), known.number(f"attention.{kind}_length_mla")
