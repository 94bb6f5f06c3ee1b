"""The demo: two real nodes on this machine, one model, one answer. What the verb tells it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class DemoOutput(Protocol):
    """The output of results, remarks and progress (`meshd.cli.output.Output`)."""

    def line(self, text: str = "") -> None: ...
    def raw(self, text: str) -> None: ...
    def note(self, text: str) -> None: ...
    def progress(self, step: str, share: float | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoArgs:
    """`model` None: SmolLM2, fetched into `cache`. `round_trips`: one worker for each, so far away, in ms."""

    model: Path | None
    cache: Path
    round_trips: tuple[float, ...] = ()
