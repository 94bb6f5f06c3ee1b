"""Compare ways of waiting: speed and cores of one answer: `python -m tests.bench.waiting`.

For each number of workers and each value of `node.waiting` a head that computes nothing and its workers are
started on this machine; devices are given to the workers in turns, so that two may share one. All stay up,
and are asked for the same answer in turns, and so is a plain llama-server on the first device, which has one
slot as they have. Printed are medians: tokens a second, and the cores that daemons, llama-server and
mesh-servers took; the JSON has every try and every thread. Linux (/proc). On a machine with fewer than eight
processors llama.cpp's programs poll only where `node.waiting` says so, as it does here.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.resource_limits import usable_processors
from meshd.base.tasks import Owner, first_error
from meshd.base.wakeful_loop import Waiting
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import completion
from meshd.build import native
from meshd.build.interface import LLAMA_SERVER, MESH_PROGRAM
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec, LocalNode, model_ready, worker_names
from meshd.fleet.proxy import run_loop

from tests.bench.random_model import SHAPES, random_model
from tests.native.bench_daemons import numbers, stock_server
from tests.native.bench_places import here

PLAIN = LLAMA_SERVER
_PROGRAMS = (LLAMA_SERVER, MESH_PROGRAM)
_PROMPT = 64  # tokens
_WARM = 32  # tokens of the first answer, which is not counted
_SECONDS = 300.0  # for one answer
_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class Plan:
    """The samples to take. None begins after `until`, of time.monotonic."""

    model: Path
    stock: Path
    devices: Sequence[str]
    workers: Sequence[int]
    ways: Sequence[Waiting]
    tokens: int
    tries: int
    until: float
    output: Path


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer: tokens a second, and cores of each thread by process, those that took most first."""

    rate: float
    cores: Mapping[str, Sequence[float]]

    @property
    def total(self) -> float:
        """Cores of all."""
        return sum(map(sum, self.cores.values()))


@dataclass(slots=True)
class Found:
    """Samples by set-up, kept in a file."""

    plan: Plan
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, name: str, sample: Sample) -> None:
        self.samples.setdefault(name, []).append(sample)
        sys.stdout.write(f"{name}: {sample.rate:.1f} tokens/s, {sample.total:.2f} cores\n")
        sys.stdout.flush()
        self.write()

    def fail(self, name: str, error: Exception) -> None:
        self.faults.append(f"{name}: {error}")
        sys.stdout.write(f"{name}: {error}\n")
        self.write()

    def write(self) -> None:
        plan = self.plan
        data = {
            "model": plan.model.name,
            "devices": list(plan.devices),
            "processors": usable_processors(),
            "tokens": plan.tokens,
            "samples": {name: [asdict(one) for one in samples] for name, samples in self.samples.items()},
            "faults": self.faults,
        }
        plan.output.write_text(json.dumps(data, indent=1) + "\n")


@dataclass(frozen=True, slots=True)
class SetUp:
    """Something that answers: its API's port, and its processes by name."""

    name: str
    port: int
    processes: Callable[[], Mapping[str, int]]

    def sample(self, tokens: int, number: int) -> Sample:
        """Ask for an answer. Raises MeshdError."""
        processes = self.processes()
        before = {name: thread_seconds(pid) for name, pid in processes.items()}
        began = time.monotonic()
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        answer = completion(connection, _PROMPT, tokens, number=number)
        seconds = time.monotonic() - began
        cores = {name: used(before[name], thread_seconds(pid), seconds) for name, pid in processes.items()}
        return Sample(answer.generate, cores)


def thread_seconds(pid: int) -> dict[int, float]:
    """Return the processor seconds of each thread of a process (/proc/PID/task/TID/schedstat)."""
    found: dict[int, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found[int(task.name)] = int((task / "schedstat").read_bytes().split()[0]) / _NANOSECONDS
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return found


def used(before: Mapping[int, float], after: Mapping[int, float], seconds: float) -> list[float]:
    """Return the cores that each thread used, most first, without those that used next to nothing."""
    cores = (round((total - before.get(thread, 0.0)) / seconds, 3) for thread, total in after.items())
    return sorted((one for one in cores if one >= 0.001), reverse=True)


def children_of(parent: int) -> Iterator[tuple[str, int]]:
    """Name and id of each process that `parent` has started."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            name, _, rest = (folder / "stat").read_text(errors="replace").rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(rest.split()[1]) == parent:
            yield name.partition("(")[2], int(folder.name)


def _of_nodes(nodes: Sequence[tuple[str, LocalNode]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, node in nodes:
        if node.pid is not None:
            found[f"{name} daemon"] = node.pid
            programs = ((child, pid) for child, pid in children_of(node.pid) if child in _PROGRAMS)
            found |= {f"{name} {child}": pid for child, pid in programs}
    return found


async def _start(owner: Owner, plan: Plan, folder: Path, count: int, way: Waiting) -> SetUp:
    waits = ("--set", f"node.waiting={way.value}")
    context = _PROMPT + plan.tokens + 512
    devices = [plan.devices[number % len(plan.devices)] for number in range(count)]
    fleet = Fleet(
        FleetSpec(
            folder=folder,
            cache=load().config.paths.cache,
            model=plan.model,
            worker_model=plan.model,
            round_trips=[0.0] * count,
            head_options=(
                *("--device", "none", "--set", "serve.output=worker", "--slots", "1"),
                *("--ctx-size", str(context), *waits),
            ),
            worker_options=[("--device", device, *waits) for device in devices],
        )
    )
    await fleet.start_workers(owner)
    head = await fleet.start_head(owner)
    await until_head_serves(fleet, head)
    status = await head.until(model_ready)
    port = int(fleet.api_url(status).rpartition(":")[2])
    nodes = [("head", head), *zip(worker_names(count), fleet.workers, strict=True)]
    return SetUp(set_up_name(count, way), port, partial(_of_nodes, nodes))


def set_up_name(count: int, way: Waiting) -> str:
    """Return how a mesh is called in the results."""
    return f"{count} worker{'s' if count > 1 else ''}, {way.value}"


def _plain(stack: ExitStack, plan: Plan) -> SetUp:
    options = ("-c", str(_PROMPT + plan.tokens + 512), "-np", "1", "--cache-ram", "0")
    place = stack.enter_context(here(plan.devices[:1]))
    port = stack.enter_context(stock_server(plan.stock, plan.model, place, options, log=_nowhere(stack)))
    return SetUp(PLAIN, port, lambda: dict(children_of_this(PLAIN)))


def _nowhere(stack: ExitStack) -> int:
    descriptor = os.open(os.devnull, os.O_WRONLY)
    stack.callback(os.close, descriptor)
    return descriptor


def children_of_this(name: str) -> Iterator[tuple[str, int]]:
    """Return the children of this process with that name."""
    return ((child, pid) for child, pid in children_of(os.getpid()) if child == name)


async def _measure(plan: Plan, found: Found) -> None:
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder, ExitStack() as stack:
        async with Owner() as owner:
            set_ups = [await asyncio.to_thread(_plain, stack, plan)]
            for count in plan.workers:
                for way in plan.ways:
                    place = Path(folder) / f"{count}-{way.value}"
                    try:
                        set_ups.append(await _start(owner, plan, place, count, way))
                    except MeshdError as error:
                        found.fail(set_up_name(count, way), error)
            for set_up in set_ups:
                await _try(found, set_up, _WARM, 0, counts=False)
            for number in range(1, plan.tries + 1):
                for set_up in set_ups:
                    if time.monotonic() < plan.until:
                        await _try(found, set_up, plan.tokens, number)
            owner.cancel()


async def _try(found: Found, set_up: SetUp, tokens: int, number: int, *, counts: bool = True) -> None:
    try:
        sample = await asyncio.to_thread(set_up.sample, tokens, number)
    except (MeshdError, OSError) as error:
        found.fail(set_up.name, error)
    else:
        if counts:
            found.add(set_up.name, sample)


def table(samples: Mapping[str, Sequence[Sample]]) -> str:
    """Return medians: tokens a second, and relative to polling with as many workers; cores, and whose."""
    lines = ["| | tokens/s | range | cores | by process |", "|---|---:|---:|---:|---|"]
    for name, tries in samples.items():
        rates = [one.rate for one in tries]
        rate = statistics.median(rates)
        polling = samples.get(f"{name.partition(',')[0]}, {Waiting.POLL.value}")
        base = statistics.median(one.rate for one in polling) if polling else 0.0
        ratio = f" ({rate / base:.3f})" if base else ""
        parts = "; ".join(
            f"{process} {statistics.median(sum(one.cores.get(process, ())) for one in tries):.2f}"
            for process in tries[0].cores
        )
        total = statistics.median(one.total for one in tries)
        span = f"{min(rates):.1f} to {max(rates):.1f}"
        lines.append(f"| {name} | {rate:.1f}{ratio} | {span} | {total:.2f} | {parts} |")
    return "\n".join(lines)


def _built(cache: Path) -> Path:
    """The folder of upstream's programs of the build that nodes use. Raises UserError without one."""
    info = native.find(cache)
    if info is None:
        raise native.not_built("llama.cpp is not built yet")
    return info.binaries[LLAMA_SERVER].parent


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.waiting", description=__doc__)
    parser.add_argument("--model", default="8b", help=f"a GGUF file, or one of {', '.join(SHAPES)}")
    parser.add_argument("--devices", default="CUDA0", help="given to the workers in turns")
    parser.add_argument("--workers", type=numbers, default=[1, 2], help="of each set-up")
    parser.add_argument("--ways", default="poll,timed,sleep")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=330.0, help="no answer is begun later")
    parser.add_argument("--stock", type=Path, help="folder of upstream's programs, else those of the build")
    parser.add_argument("--json", type=Path, required=True)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run; returns 1 where something failed."""
    began = time.monotonic()
    args = _parser().parse_args(argv)
    log.set_up(level="error")
    cache = load().config.paths.cache
    try:
        model = random_model(args.model, cache / "bench-models") if args.model in SHAPES else Path(args.model)
        plan = Plan(
            model=model.resolve(),
            stock=args.stock or _built(cache),
            devices=args.devices.split(","),
            workers=args.workers,
            ways=[Waiting(word) for word in args.ways.split(",")],
            tokens=args.tokens,
            tries=args.tries,
            until=began + args.seconds,
            output=args.json,
        )
        found = Found(plan)
        run_loop(_measure(plan, found))
    except MeshdError as error:
        raise SystemExit(f"error: {error.what}\n\nhint: {error.hint}") from None
    except ExceptionGroup as group:
        raise SystemExit(f"error: {first_error(group)}") from None
    sys.stdout.write(table(found.samples) + "\n")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
