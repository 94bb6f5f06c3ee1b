"""The cells of a measurement, the rig that they share, and a llama-server that is ready.

The inputs of most benchmarks: native programs and a model, built or fetched once.
"""

from dataclasses import dataclass
from pathlib import Path

from meshd.bench.interface import WITHOUT, BenchOutput
from meshd.build.fetch import demo_model
from meshd.build.interface import BuildProgress, NativeInfo
from meshd.build.native import build

LOAD_SECONDS = 600.0
DECODES = 3  # of TOKENS each, of which the median counts, where a cell has fewer runs than that


async def programs_and_model(cache: Path, model: Path | None, out: BenchOutput) -> tuple[NativeInfo, Path]:
    """Build upstream's programs and ours; return them and `model`, or SmolLM2. Raises MeshdError."""

    def progress(step: BuildProgress) -> None:
        out.progress(step.text, step.done / step.total if step.total else None)

    native = await build(cache, progress=progress)
    return native, model if model is not None else await demo_model(cache, progress)


@dataclass(frozen=True, slots=True)
class Cell:
    """One setup to measure: `workers` at a round trip of `rtt_ms`.

    `without`: the part of meshd to disable (interface.WITHOUT), if any. `ends`: one node alone has the ends
    of the model on its processor, as meshd's head does. `defaults`: stock as upstream ships it.
    """

    workers: int
    rtt_ms: float
    without: str = ""
    ends: bool = False
    defaults: bool = False

    @property
    def head_options(self) -> tuple[str, ...]:
        """The serving node's options for this cell."""
        return ("--set", WITHOUT[self.without]) if self.without else ()


@dataclass(frozen=True, slots=True)
class Rig:
    """The inputs that all measurements of one call share.

    `devices`: the GPUs that workers use in turns; a node alone uses the first. Empty: processors only.
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
        """Return the options of worker `number`, for meshd's and upstream's programs."""
        return ("--device", self.devices[number % len(self.devices)]) if self.devices else ()


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A llama-server that has loaded its model."""

    place: Path
    argv: list[str]
    seconds: float
    sent: int  # bytes between nodes until then
