"""Compare meshd with one plain llama.cpp on the same devices: `python -m tests.native.bench_table`.

Every set-up runs at the same time, each with the same model, and one client asks all of them in turns, so
that none has a machine of its own:

- `box`: one llama-server with all devices: one slot, one slot without reuse of graphs (which waits for the
  pipeline), a slot for each of the many requests with a cache each, and the same with one cache. The
  fastest of them in a row is what the others are compared with;
- `alone`: one llama-server with the first device; `rpc`: with stock's rpc-servers;
- `mesh`: a head that computes nothing and a worker for each device: as it comes, with one slot, and with a
  slot for each of the many requests.

Rates are tokens a second: of a prompt and of one request by llama-server's own clock; of many requests by how
much longer all of them take if each has more tokens. JSON is written after every value, and the table (median
and range, ratio, goal) at the end; exit code 1 where a set-up failed, 3 where a goal is missed.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import ChatAnswer, completion
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec, model_ready
from meshd.fleet.proxy import run_loop

from tests.native.bench_daemons import numbers, stock_server
from tests.native.bench_places import Place, Programs, here, stock_workers

MANY = "many requests"
ONE = "one request"
MISSED = 3
_REUSE_OFF = {"LLAMA_GRAPH_REUSE_DISABLE": "1"}  # src/llama-context.cpp
_ONE_SLOT = ("-np", "1", "--cache-ram", "0")
_SECONDS = 300.0
_PROMPT = 128  # tokens, of a request that is timed by its answer
_SHORT = 32  # tokens of an answer that is taken off a longer one
# what the issue of speed asks of meshd, relative to the fastest plain llama.cpp with the same devices
GOALS: Mapping[str, float] = {"prompt 512": 0.85, "prompt 2048": 0.92, ONE: 0.92, MANY: 0.9}


@dataclass(frozen=True, slots=True)
class Plan:
    """Measure `tries` times; contexts of `context` tokens, in all for `many` slots too."""

    stock: Path
    model: Path
    devices: Sequence[str]
    prompts: Sequence[int]
    many: int
    generate: int
    tries: int
    output: Path

    @property
    def context(self) -> int:
        return max(self.prompts) + 512

    @property
    def each(self) -> int:
        """Context of one of many slots."""
        return _PROMPT + _SHORT + self.generate + 96

    @property
    def many_slots(self) -> tuple[str, ...]:
        return ("-np", str(self.many), "-c", str(self.many * self.each), "--cache-ram", "0")


@dataclass(slots=True)
class SetUp:
    """A server that answers on `port`. Each prompt is another one. `does_many`: what it is asked."""

    name: str
    port: int
    does_many: bool
    asked: int = 0

    def ask(self, tokens: int, generate: int) -> ChatAnswer:
        """Send a request. Raises MeshdError."""
        self.asked += 1
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        return completion(connection, tokens, generate, number=self.asked)

    def together(self, count: int, generate: int) -> float:
        """Return the seconds until so many requests have been answered. Raises MeshdError."""
        began = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            for one in [pool.submit(self.ask, _PROMPT, generate) for _ in range(count)]:
                one.result()
        return time.monotonic() - began

    def rates(self, plan: Plan) -> Iterator[tuple[str, float]]:
        """Measure each row once. Raises MeshdError."""
        if self.does_many:
            short = self.together(plan.many, _SHORT)
            long = self.together(plan.many, _SHORT + plan.generate)
            yield MANY, plan.many * plan.generate / (long - short) if long > short else 0.0
            return
        for tokens in plan.prompts:
            yield f"prompt {tokens}", self.ask(tokens, 1).prompt
        yield ONE, self.ask(_PROMPT, 2 * plan.generate).generate


@dataclass(slots=True)
class Found:
    """Tokens a second of every try, by set-up and row."""

    output: Path
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def add(self, name: str, row: str, rate: float) -> None:
        self.rates.setdefault(name, {}).setdefault(row, []).append(round(rate, 2))
        self._write()

    def fail(self, name: str, error: Exception) -> None:
        self.faults.append(f"{name}: {error}")
        sys.stdout.write(f"{name}: {error}\n")
        self._write()

    def _write(self) -> None:
        self.output.write_text(json.dumps({"rates": self.rates, "faults": self.faults}, indent=1) + "\n")


def table(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> tuple[list[str], bool]:
    """Return the lines, and whether what `mesh` reached as it comes is within every goal."""
    rows = list(dict.fromkeys(row for found in rates.values() for row in found))
    lines, met = [], True
    for row in rows:
        middle = {name: statistics.median(found[row]) for name, found in rates.items() if row in found}
        box = max((rate for name, rate in middle.items() if name.startswith("box")), default=0.0)
        for name, rate in middle.items():
            tries = rates[name][row]
            ratio = rate / box if box else 0.0
            goal = GOALS.get(row) if name.startswith("mesh") else None
            verdict = "" if goal is None else f" goal {goal:g} {'met' if ratio >= goal else 'missed'}"
            met = met and (goal is None or ratio >= goal)
            lines.append(
                f"{row:14} {name:18} {rate:8.0f} ({min(tries):.0f} to {max(tries):.0f}) {ratio:5.2f}{verdict}"
            )
    return lines, met


# --- set-ups


@contextmanager
def _plain(plan: Plan, name: str, place: Place, options: Sequence[str]) -> Iterator[SetUp]:
    many = name.endswith("many")
    context = () if many else ("-c", str(plan.context))
    with stock_server(plan.stock, plan.model, place, (*options, *context), subprocess.DEVNULL) as port:
        yield SetUp(name, port, many)


def _plain_set_ups(stack: ExitStack, plan: Plan, ways: Sequence[str]) -> Iterator[SetUp]:
    programs = Programs(mesh=plan.stock, stock=plan.stock)

    def on(devices: Sequence[str], env: Mapping[str, str] | None = None) -> Place:
        place = stack.enter_context(here(devices))
        return Place(place.devices, place.options, {**place.env, **(env or {})})

    for way in ways:
        if way == "box":
            every = plan.devices
            yield stack.enter_context(_plain(plan, "box", on(every), _ONE_SLOT))
            yield stack.enter_context(_plain(plan, "box, no reuse", on(every, _REUSE_OFF), _ONE_SLOT))
            yield stack.enter_context(_plain(plan, "box, many", on(every), plan.many_slots))
            shared = (*plan.many_slots, "-kvu")
            yield stack.enter_context(_plain(plan, "box, shared, many", on(every), shared))
        elif way == "alone":
            yield stack.enter_context(_plain(plan, "alone", on(plan.devices[:1]), _ONE_SLOT))
        elif way == "rpc":
            place = stack.enter_context(stock_workers(programs, plan.devices, subprocess.DEVNULL))
            yield stack.enter_context(_plain(plan, "rpc", place, _ONE_SLOT))


async def _mesh(owner: Owner, plan: Plan, folder: Path, name: str, options: Sequence[str]) -> SetUp:
    fleet = Fleet(
        FleetSpec(
            folder=folder,
            cache=load().config.paths.cache,
            model=plan.model,
            worker_model=plan.model,
            round_trips=[0.0] * len(plan.devices),
            head_options=("--device", "none", "--split", "always", *options),
            worker_options=[("--device", device) for device in plan.devices],
        )
    )
    await fleet.start_workers(owner)
    head = await fleet.start_head(owner)
    await until_head_serves(fleet, head)
    status = await head.until(model_ready)
    for part in status.model.split if status.model is not None else ():
        sys.stdout.write(f"{name}: {part.node} {part.device}: {part.layers} layers, push {part.push}\n")
    return SetUp(name, int(fleet.api_url(status).rpartition(":")[2]), name.endswith("many"))


async def _mesh_set_ups(owner: Owner, plan: Plan, folder: str, found: Found) -> list[SetUp]:
    context, each = ("--ctx-size", str(plan.context)), ("--ctx-size", str(plan.each))
    ways = {
        "mesh": context,
        "mesh, one slot": (*context, "--slots", "1"),
        "mesh, many": (*each, "--slots", str(plan.many)),
    }
    set_ups = []
    for name, options in ways.items():
        place = Path(tempfile.mkdtemp(dir=folder))
        try:
            set_ups.append(await _mesh(owner, plan, place, name, options))
        except MeshdError as error:
            found.fail(name, error)
    return set_ups


async def _measure(plan: Plan, ways: Sequence[str], found: Found) -> None:
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder, ExitStack() as stack:
        async with Owner() as owner:
            set_ups = await asyncio.to_thread(lambda: list(_plain_set_ups(stack, plan, ways)))
            if "mesh" in ways:
                set_ups += await _mesh_set_ups(owner, plan, folder, found)
            for number in range(plan.tries + 1):
                for set_up in set_ups:
                    await asyncio.to_thread(_try, set_up, plan, found, counts=number > 0)
            owner.cancel()


def _try(set_up: SetUp, plan: Plan, found: Found, *, counts: bool) -> None:
    """Measure each row of a set-up once; the first time all kernels are made, and nothing counts."""
    try:
        for row, rate in set_up.rates(plan):
            if counts:
                found.add(set_up.name, row, rate)
    except (MeshdError, OSError) as error:
        found.fail(set_up.name, error)


def main(argv: Sequence[str]) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.bench_table", description=__doc__)
    parser.add_argument("--stock", type=Path, required=True, help="folder of upstream's programs")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--devices", default="CUDA0,CUDA1")
    parser.add_argument("--ways", default="box,alone,rpc,mesh")
    parser.add_argument("--prompts", type=numbers, default=[512, 2048, 8190])
    parser.add_argument("--many", type=int, default=32)
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(argv)
    log.set_up(level="error")
    plan = Plan(
        stock=args.stock,
        model=args.model.resolve(),
        devices=args.devices.split(","),
        prompts=args.prompts,
        many=args.many,
        generate=args.generate,
        tries=args.tries,
        output=args.json,
    )
    found = Found(plan.output)
    try:
        run_loop(_measure(plan, args.ways.split(","), found))
    except ExceptionGroup as group:
        raise first_error(group) from group
    lines, met = table(found.rates)
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if found.faults else 0 if met else MISSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
