"""What one life of the model on a head comes to (head.py)."""

from dataclasses import dataclass, field

from meshd.role.interface import SplitPart
from meshd.role.weights_report import WeightsReport


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load came to; `seconds` None before the first."""

    seconds: float | None = None
    why: str = ""
    split: tuple[SplitPart, ...] = ()
    report: WeightsReport = field(default_factory=lambda: WeightsReport({}))


@dataclass(frozen=True, slots=True)
class ServerDied:
    """llama-server ended, or made no token, before it was ready: with which split, and its last lines."""

    split: tuple[SplitPart, ...]
    tail: tuple[str, ...]
