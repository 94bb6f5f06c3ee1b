"""The inputs of most benchmarks: native programs and a model, built or fetched once."""

from pathlib import Path

from meshd.bench.interface import BenchOutput
from meshd.build.demo_model import demo_model
from meshd.build.interface import BuildProgress, NativeInfo
from meshd.build.native import build


async def programs_and_model(cache: Path, model: Path | None, out: BenchOutput) -> tuple[NativeInfo, Path]:
    """Build upstream's programs and ours; return them and `model`, or SmolLM2. Raises MeshdError."""

    def progress(step: BuildProgress) -> None:
        out.progress(step.text, step.done / step.total if step.total else None)

    native = await build(cache, progress=progress)
    return native, model if model is not None else await demo_model(cache, progress)
