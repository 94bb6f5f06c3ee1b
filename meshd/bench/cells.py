"""What is measured, and on what: cells, the rig that all share, a llama-server that is ready."""

from dataclasses import dataclass
from pathlib import Path

from meshd.bench.interface import WITHOUT
from meshd.build.interface import NativeInfo

LOAD_SECONDS = 600.0
DECODES = 3  # of TOKENS each, of which the median counts, where a cell has fewer runs than that


@dataclass(frozen=True, slots=True)
class Cell:
    """`workers` at a round trip of `rtt_ms`.

    `without`: what meshd does without (interface.WITHOUT), empty for nothing. `ends`: one node alone has the
    ends of the model where meshd's head has them, on its processor. `defaults`: as upstream ships it.
    """

    workers: int
    rtt_ms: float
    without: str = ""
    ends: bool = False
    defaults: bool = False

    @property
    def head_options(self) -> tuple[str, ...]:
        """Of the serving node, for this cell alone."""
        return (WITHOUT[self.without],) if self.without else ()


@dataclass(frozen=True, slots=True)
class Rig:
    """What all measurements of one call share.

    `devices`: GPUs that the workers have, in turns; one node alone has the first. None: processors only.
    """

    model: Path
    cache: Path
    native: NativeInfo
    speed: bool  # prompt and tokens too, not the load alone
    devices: tuple[str, ...] = ()
    decodes: int = DECODES
    prompts: bool = True  # of `prompt_tokens`, too
    prompt_tokens: int = 512

    def device(self, number: int) -> tuple[str, ...]:
        """Options of the worker of this number, for meshd's and upstream's programs."""
        return ("--device", self.devices[number % len(self.devices)]) if self.devices else ()


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A llama-server that is ready."""

    place: Path
    argv: list[str]
    seconds: float
    sent: int  # bytes between nodes until then
