"""A draft model: whether it fits the model that is served, and the memory that it takes on the head. Pure.

llama-server computes it on the head's CPU, with a cache for each answer. It goes on without a draft model
whose vocabulary is another, so that is refused here, before anything is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshd.base.errors import UserError
from meshd.model.cache import ContextShape
from meshd.model.gguf import Header
from meshd.model.layers import ModelLayers, read_layers
from meshd.wire.lease import OfferedDevice

_MOST_TOKENS_APART = 128  # of vocabularies that llama-server takes for the same
_TOKENS = "tokenizer.ggml.tokens"
_KIND = "tokenizer.ggml.model"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Its first file, and its sizes."""

    path: str
    layers: ModelLayers

    def memory(self, shape: ContextShape) -> int:
        """Bytes of the head's memory: the weights, and a cache as long as that of the model."""
        return self.layers.weight_bytes + sum(self.layers.cache.layer_bytes(shape))


def draft_model(path: str, name: str, headers: Sequence[Header], served: Header) -> DraftModel:
    """`served`: the header of the model that is served. Raises UserError if the two do not fit."""
    layers, header = read_layers(headers, name=name), headers[0]
    kinds = header.text(_KIND), served.text(_KIND)
    counts = header.length(_TOKENS), served.length(_TOKENS)
    if kinds[0] != kinds[1] or abs(counts[0] - counts[1]) > _MOST_TOKENS_APART:
        raise UserError(
            f"`{name}` cannot draft for the model: it has another vocabulary ({counts[0]} tokens of "
            f"`{kinds[0]}`, not {counts[1]} of `{kinds[1]}`)",
            hint="give a smaller model of the same family with `--draft-model`",
        )
    return DraftModel(path, layers)


def beside_draft(
    own: Sequence[OfferedDevice], draft: DraftModel | None, shape: ContextShape
) -> tuple[OfferedDevice, ...]:
    """The head's devices, less what the draft model takes of its CPU's memory."""
    taken = draft.memory(shape) if draft is not None else 0
    return tuple(
        replace(device, free_bytes=max(0, device.free_bytes - taken)) if device.name == "CPU" else device
        for device in own
    )
