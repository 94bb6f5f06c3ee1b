"""Compute the longest answer that llama-server allows: the trained context, unless the user stretches it.

Follows `n_ctx_slot` of its server-context.cpp and `llama_init_from_model` of the pinned commit. A longer
context is not used, though its memory is spent. YaRN with another scale than the model's own moves the limit;
linear scaling (`--rope-scale` alone) does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshd.model.cache import Hyperparameters

_YARN = "yarn"
MOST_TOKENS = 1 << 31
_CONTEXT_KEY = ".context_length"
_SCALES = ("--rope-scale", "--rope-freq-scale")


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The scaling in the model's header. `original`: tokens before it was stretched, 0 if unknown."""

    kind: str = "linear"
    factor: float = 1.0
    original: int = 0


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
    for one in text.split(","):
        key, _, value = one.partition("=")
        if key.endswith(_CONTEXT_KEY) and value.startswith("int:"):
            trained = int(_positive(value.removeprefix("int:"))) or trained
    return trained
