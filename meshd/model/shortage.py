"""Why a model does not fit, in figures that add up: what its layers need, what each memory has for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.base.byte_format import MIB, in_memory
from meshd.model.cache import ContextShape
from meshd.model.layers import ModelLayers


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Of one device, or of several that share a memory. Bytes.

    `fixed`: weights beside the layers; `compute`: buffers, a bound. `takes_layers`: some may lie there.
    """

    labels: Sequence[str]
    free: int
    fixed: int
    compute: int
    takes_layers: bool

    @property
    def text(self) -> str:
        """For people; empty for one without layers that has enough for the rest."""
        left = self.free - self.fixed - self.compute
        if left >= 0 and not self.takes_layers:
            return ""
        names, shared = " and ".join(self.labels), len(self.labels) > 1
        has = f"{'have' if shared else 'has'} {in_memory(left)} for them"
        if left <= 0:
            has = f"{'have' if shared else 'has'} nothing for them"
        if not self.takes_layers:
            has = f"lacks {in_memory(-left)} even without them"
        once = ", as one of them says, in the memory that they share" if shared else ""
        beside = f"{in_memory(self.fixed)} for weights beside the layers, " if self.fixed >= MIB else ""
        return (
            f"{names} {has} ({in_memory(self.free)} free{once}, less {beside}"
            f"up to {in_memory(self.compute)} for compute buffers)"
        )


def shortage_text(model: ModelLayers, shape: ContextShape, memories: Sequence[MemoryUse]) -> str:
    """What is needed and what is there."""
    weights, cache = sum(model.layers), sum(model.cache.layer_bytes(shape))
    needed = (
        f"`{model.name}` does not fit: it needs {in_memory(weights + cache)} for its {model.count} layers "
        f"(weights {in_memory(weights)}, cache of {shape.text} {in_memory(cache)})"
    )
    return "; ".join([needed, *(text for memory in memories if (text := memory.text))])
