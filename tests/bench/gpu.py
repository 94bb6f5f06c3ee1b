"""Stock llama.cpp beside meshd on GPUs: builds for the backend at hand, measures, writes page and JSON.

`python -m tests.bench.gpu --write FILE.md [--backend cuda|vulkan|…] [--model small,8b,FILE…]
[--devices CUDA0,CUDA1] [--workers 2] [--rtt 0,20,50] [--source DIR]`.

Workers take the GPUs in turns, so two of them have one each, or share the only one; the head has its
processor and computes nothing but the ends of the model. Real daemons in networks of their own
(distance.py), and upstream's binaries behind delaying proxies. One node alone is upstream's on the first
GPU. What was measured is written after every cell, so that a run that is cut short leaves what it had, and
`--resume` goes on with it: `--minutes N` ends a call in time where a machine is lent by the hour, and other
lists add cells.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError, UserError
from meshd.base.files import expanded
from meshd.base.tasks import first_error
from meshd.bench.distance import machine, measure_one_way, programs, run_meshd, run_stock
from meshd.bench.figures import MESHD
from meshd.bench.rig import Cell, Rig
from meshd.build.fetch import demo_model
from meshd.build.interface import MESH_PROGRAM, BuildProgress, NativeInfo
from meshd.build.native import build
from meshd.config.load import load
from meshd.devices.devices import list_devices, pick
from meshd.fleet.proxy import run_loop
from meshd.process.run import run_to_end
from meshd.wire.lease import OfferedDevice

from tests.bench.gpu_page import GpuRunFacts, page
from tests.bench.gpu_results import Found, decode, encode
from tests.bench.random_model import SHAPES, random_model

SMOLLM2 = "smollm2"
UNFINISHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """The command line's options. `devices` empty: all GPUs of the backend. `until`: of time.monotonic."""

    write: Path
    cache: Path
    backend: str
    source: Path | None
    models: tuple[str, ...]
    devices: tuple[str, ...]
    workers: tuple[int, ...]
    round_trips: tuple[float, ...]
    pairs: int
    prompt: int
    resume: bool
    until: float


def main(argv: Sequence[str]) -> int:
    """Returns 1 when a text differs from one node's or a cell came to nothing, else 0; 3: time was over."""
    log.set_up(level="error")
    parser = _parser()
    args = parser.parse_args(argv)
    asked = GpuOptions(
        write=args.write,
        cache=load().config.paths.cache,
        backend=args.backend,
        source=args.source,
        models=tuple(args.model.split(",")),
        devices=tuple(filter(None, args.devices.split(","))),
        workers=tuple(map(int, args.workers.split(","))),
        round_trips=tuple(map(float, args.rtt.split(","))),
        pairs=args.pairs,
        prompt=args.prompt,
        resume=args.resume,
        until=time.monotonic() + 60 * args.minutes,
    )
    try:
        if args.build_only:
            run_loop(_build(asked))
            return 0
        found, left = run_loop(_measure(asked, datetime.now(UTC)))
    except MeshdError as error:
        raise SystemExit(f"error: {error.what}\n\nhint: {error.hint}") from None
    except ExceptionGroup as group:
        raise SystemExit(f"error: {first_error(group)}") from None
    if any(one.faults or one.figures.texts_differ() for one in found):
        return 1
    if left:
        _say(f"time is over, and {left} of what was asked for is left: `--resume` goes on with it")
    return UNFINISHED if left else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu", description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="the page; JSON beside it")
    parser.add_argument("--backend", default="auto", help="as of `meshd native build`")
    parser.add_argument(
        "--source", type=Path, metavar="DIR", help="upstream's tree, where pip has no network"
    )
    parser.add_argument(
        "--model", default="small,8b", metavar="LIST", help=f"{', '.join(SHAPES)} (random), smollm2, or files"
    )
    parser.add_argument("--devices", default="", metavar="LIST", help="such as CUDA0,CUDA1 (default: all)")
    parser.add_argument("--workers", default="2", metavar="N,…")
    parser.add_argument("--rtt", default="0,20,50", metavar="MS,…")
    parser.add_argument("--pairs", type=int, default=1, metavar="N")
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens (default: 512)")
    parser.add_argument("--resume", action="store_true", help="go on with what FILE's JSON has")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), metavar="N", help="begin no measurement after so long"
    )
    parser.add_argument("--build-only", action="store_true", help="build, but measure nothing")
    return parser


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


# --- what it takes


async def _build(asked: GpuOptions) -> NativeInfo:
    shown = -1.0

    def progress(step: BuildProgress) -> None:
        nonlocal shown
        share = 10 * step.done // step.total if step.total else -1
        if share != shown or share == -1:
            shown = share
            _say(step.text)

    backend, source = asked.backend, asked.source
    return await build(asked.cache, backend=backend, source=source, progress=progress)


async def _gpus(native: NativeInfo, asked: Sequence[str]) -> tuple[OfferedDevice, ...]:
    """Return the GPUs that were asked for, else all. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        listed = await list_devices(
            native.binaries[MESH_PROGRAM],
            machine="",
            run_to_end=run_to_end,
            log=Path(folder) / "devices.log",
        )
    return pick(listed, asked)


async def _model(name: str, cache: Path) -> Path:
    if name == SMOLLM2:
        return await demo_model(cache, lambda step: _say(step.text))
    return await asyncio.to_thread(_file_or_random, name, cache)


def _file_or_random(name: str, cache: Path) -> Path:
    path = expanded(name).absolute()
    return path if path.is_file() else random_model(name, cache / "bench-models")


# --- measuring


async def _measure(asked: GpuOptions, began: datetime) -> tuple[list[Found], int]:
    """Return the results, and how many measurements were left when the time was over."""
    native = await _build(asked)
    devices = await _gpus(native, asked.devices)
    made = GpuRunFacts(
        when=began.strftime("%Y-%m-%d"),
        machine=machine(),
        backend=native.backend,
        devices=tuple(f"{one.name} ({one.description})" for one in devices),
        pin=f"{programs()}; prompts of {asked.prompt} tokens",
        workers=asked.workers,
    )
    made, found = await asyncio.to_thread(_earlier, asked, made)
    gpus = tuple(device.name for device in devices if device.kind == "gpu")
    left = 0
    for name in asked.models:
        _say(f"model {name}")
        file = await _model(name, asked.cache)
        one = _of_model(found, name, file.stat().st_size)
        rig = Rig(file, asked.cache, native, speed=True, devices=gpus, prompt_tokens=asked.prompt)
        left += await _cells(rig, asked, one, lambda: _write(asked, made, found))
    return found, left


def _earlier(asked: GpuOptions, made: GpuRunFacts) -> tuple[GpuRunFacts, list[Found]]:
    """Return earlier results to go on with. Raises UserError."""
    place = _json(asked)
    if not asked.resume or not place.exists():
        return made, []
    return decode(place.read_text(encoding="utf-8"), made, label=str(place))


def _of_model(found: list[Found], name: str, size: int) -> Found:
    """Return the results of this model, or its place in `found`. Raises UserError."""
    for one in found:
        if one.model == name:
            if one.size != size:
                raise UserError(
                    f"the model `{name}` had {one.size} bytes when it was measured, and has {size} now",
                    hint="omit `--resume` to start over",
                )
            return one
    found.append(Found(name, size))
    return found[-1]


async def _cells(rig: Rig, asked: GpuOptions, found: Found, write: Callable[[], None]) -> int:
    """All of one model that are not there yet, in turns; a cell that fails is noted, and the others go on.

    Returns how many were left when the time was over.
    """
    argv: list[str] | None = None
    missing = [(turn, cell) for turn in range(asked.pairs) for cell in _order(asked)]
    missing = [(turn, cell) for turn, cell in missing if found.times(cell.workers, cell.rtt_ms) <= turn]
    for number, (turn, cell) in enumerate(missing):
        if time.monotonic() > asked.until:
            return len(missing) - number
        _say(f"{found.model}: {cell.workers} workers, RTT {cell.rtt_ms:g} ms")
        try:
            ours, argv = await run_meshd(rig, cell)
            found.runs.append(ours)
            if found.alone <= turn:
                found.runs += [await run_stock(rig, Cell(0, 0.0, ends=ends), argv) for ends in (False, True)]
        except (MeshdError, ExceptionGroup) as error:
            found.faults.append(_fault(MESHD, cell, error))
        if argv is not None:
            await _stock_cell(rig, cell, argv, found)
        if cell.rtt_ms not in found.one_way:
            found.one_way.update(await measure_one_way((cell.rtt_ms,)))
        write()
    return 0


async def _stock_cell(rig: Rig, cell: Cell, argv: list[str], found: Found) -> None:
    try:
        found.runs.append(await run_stock(rig, cell, argv))
    except (MeshdError, ExceptionGroup) as error:
        found.faults.append(_fault("stock", cell, error))


def _order(asked: GpuOptions) -> Iterator[Cell]:
    for workers in asked.workers:
        for rtt in asked.round_trips:
            yield Cell(workers, rtt)


def _fault(setup: str, cell: Cell, error: BaseException) -> str:
    first = first_error(error) if isinstance(error, BaseExceptionGroup) else error
    told = f"{first.what}: {first.hint}" if isinstance(first, MeshdError) else repr(first)
    _say(f"{setup} failed: {told}")
    return f"{setup}, {cell.workers} workers, RTT {cell.rtt_ms:g} ms: {' '.join(told.split())[:300]}"


def _write(asked: GpuOptions, made: GpuRunFacts, found: Sequence[Found]) -> None:
    parts = [(one.model, one.size, one.figures, one.faults) for one in found]
    asked.write.write_text(page(made, parts), encoding="utf-8")
    _json(asked).write_text(encode(made, found), encoding="utf-8")


def _json(asked: GpuOptions) -> Path:
    return asked.write.with_suffix(".json")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
