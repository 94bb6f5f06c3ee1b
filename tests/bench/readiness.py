"""Time `meshd serve` from asking its workers until `/health` is 200.

One machine alone, and connected workers at a distance that TCP sees (networks.py), in turns. All are real
daemons that load the model and generate the first token, once when they begin, while links are still being
made, and then as often as llama-server is ended. The beginning is in the head's log, the end is what a client
sees.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import machine
from meshd.bench.figures import count_of
from meshd.bench.interface import BenchOutput
from meshd.bench.llama import until_served
from meshd.bench.rig import give_back, programs_and_model, take_memory
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec, LocalNode
from meshd.fleet.networks import need_namespaces

from tests.bench.networks import WiredFleet
from tests.bench.program import run_bench
from tests.bench.ready_figures import ReadinessFigures, ReadyTimes, asked_at, promises, table

_LOOK_SECONDS = 0.02  # for the beginning of a start, which the log dates
_READY_SECONDS = 300.0
REMOTE = ("--device", "none")  # the head computes nothing but what is always its own: each token crosses


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyArgs:
    """Cells are `workers` by `round_trips` (ms), each measured `runs` times. `model` None: SmolLM2."""

    model: Path | None
    cache: Path
    workers: tuple[int, ...] = (1, 2, 4)
    round_trips: tuple[float, ...] = (0.0, 20.0, 50.0)
    runs: int = 3
    as_json: bool = False


def main(argv: Sequence[str]) -> int:
    """Measure what the command line says, and print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.readiness", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--workers", default="1,2,4", metavar="N,…")
    parser.add_argument("--rtt", default="0,20,50", metavar="MS,…")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="of each cell")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    args = ReadyArgs(
        model=given.model,
        cache=load().config.paths.cache,
        workers=tuple(map(int, given.workers.split(","))),
        round_trips=tuple(map(float, given.rtt.split(","))),
        runs=given.tries,
        as_json=given.json,
    )
    return run_bench(lambda out: run(args, out))


def run(args: ReadyArgs, out: BenchOutput) -> int:
    """Returns 0 when every promise was kept, else 1. Raises MeshdError."""
    log.set_up(level="error")
    found = measure(args, out)
    kept = promises(found)
    if args.as_json:
        promised = [{**asdict(one), "held": one.held} for one in kept]
        out.json({"machine": machine(), "runs": [asdict(one) for one in found.runs], "promises": promised})
    else:
        out.table(*table(found))
        out.note(f"{machine()}; medians; bounds are for READY, FIRST is held to none")
    return 0 if all(one.held for one in kept) else 1


def measure(args: ReadyArgs, out: BenchOutput) -> ReadinessFigures:
    """All cells. Raises MeshdError."""
    need_namespaces()
    try:
        return ReadinessFigures(tuple(asyncio.run(_runs(args, out))))
    except ExceptionGroup as group:
        raise first_error(group) from None


async def _runs(args: ReadyArgs, out: BenchOutput) -> Sequence[ReadyTimes]:
    _, model = await programs_and_model(args.cache, args.model, out)
    runs: list[ReadyTimes] = []
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with Owner() as owner:
            alone = await Serving.start(owner, _fleet(args, model, Path(name), 0, 0.0))
            for workers in args.workers:
                for rtt in args.round_trips:
                    runs += await _cell(args, model, workers, rtt, alone, out)
            owner.cancel()
    return runs


async def _cell(
    args: ReadyArgs, model: Path, workers: int, rtt: float, alone: "Serving", out: BenchOutput
) -> list[ReadyTimes]:
    """The nodes stay and their links are up; the model is started over each time, and alone after it."""
    found: list[ReadyTimes] = []
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with Owner() as owner:
            far = await Serving.start(owner, _fleet(args, model, Path(name), workers, rtt))
            first = far.first_seconds
            for number in range(args.runs):
                out.progress(f"ready: {count_of(workers, 'worker')}, {rtt:g} ms, {number + 1} of {args.runs}")
                seconds = await far.again()
                found.append(ReadyTimes(workers=workers, rtt_ms=rtt, seconds=seconds, first=first))
                seconds = await alone.again()
                found.append(ReadyTimes(workers=0, rtt_ms=0.0, seconds=seconds, first=alone.first_seconds))
            owner.cancel()
    return found


def _fleet(args: ReadyArgs, model: Path, folder: Path, workers: int, rtt: float) -> Fleet:
    make = WiredFleet if workers else Fleet
    return make(
        FleetSpec(
            folder=folder,
            cache=args.cache,
            model=model,
            worker_model=model,
            round_trips=[rtt / 1000] * workers,
            head_options=REMOTE if workers else (),
        )
    )


class Serving:
    """A head that serves, with its workers."""

    def __init__(self, head: LocalNode, url: str) -> None:
        self._head = head
        self._url = url
        self._starts = 0
        self.first_seconds = 0.0

    @classmethod
    async def start(cls, owner: Owner, fleet: Fleet) -> "Serving":
        """Ready for the first time. Raises MeshdError."""
        if fleet.spec.round_trips:
            await fleet.start_workers(owner)
        held = await take_memory()
        head = await fleet.start_head(owner)
        owner.start(give_back(held, head.spec.home / "llama.sock"), name="memory")
        status = await head.until(lambda status: bool(fleet.api_url(status)))
        serving = cls(head, fleet.api_url(status))
        serving.first_seconds = await serving._until_ready()
        return serving

    async def again(self) -> float:
        """End llama-server: seconds from the next asking until it is ready again. Raises MeshdError."""
        status = await self._head.status()
        [pid] = [child.pid for child in status.children if child.name == "llama-server"]
        if pid is None:
            raise MeshdError("the head has no llama-server")
        os.kill(pid, signal.SIGKILL)
        return await self._until_ready()

    async def _until_ready(self) -> float:
        async with asyncio.timeout(_READY_SECONDS):
            asked = await asyncio.to_thread(self._asked)
            while len(asked) <= self._starts:
                await asyncio.sleep(_LOOK_SECONDS)
                asked = await asyncio.to_thread(self._asked)
            await until_served(self._url)
        ready_at = time.time()
        self._starts = len(asked)
        again = await asyncio.to_thread(self._asked)
        if len(again) != self._starts:
            raise MeshdError("the head had to start over because something else went wrong")
        return ready_at - asked[-1]

    def _asked(self) -> list[float]:
        return asked_at((self._head.spec.home / "node.log").read_text(encoding="utf-8"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
