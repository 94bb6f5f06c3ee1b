"""Compare meshd with one plain llama.cpp on the same devices: `python -m tests.native.bench_table`.

Every set-up runs at the same time, each with the same model, and one client asks all of them in turns, so
that none has a machine of its own:

- `box`: one llama-server with all devices: one slot, one slot without reuse of graphs (which waits for the
  pipeline), a slot for each of the many requests with a cache each, and the same with one cache. The
  fastest of them in a row is what the others are compared with;
- `alone`: one llama-server with the first device; `rpc`: with stock's rpc-servers;
- `mesh`: a head that computes nothing and a worker for each device: as it comes, with one slot, and with a
  slot for each of the many requests, with a cache each and with one cache. They start one after another, some
  20 s each.

`--ubatch` names micro batches, with ` u256` behind the names of what was given one; `mesh` is measured with
those that meshd chooses, and with those of `--given`. `--rtt` puts a distance between the nodes of `mesh` and
`rpc`, with ` 20 ms` behind their names; the box is as near as ever. Nothing is compressed there: the path
carries far more than the 25 MB/s up to which nodes would by themselves.

Rates are tokens a second: of a prompt and of one request by llama-server's own clock; of many requests by how
much longer all of them take if each has more tokens. After every value JSON is written and, beside it, the
table (median and range, ratio, goal), with the micro batch and each worker's layers that meshd chose. Exit
code 1 where a set-up failed or a value is lacking, 3 where a goal is missed. `--minutes` begins no more tries
after so long.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import ChatAnswer, arguments_of, completion
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec, model_ready
from meshd.fleet.proxy import run_loop

from tests.native.bench_daemons import numbers, stock_server
from tests.native.bench_places import Place, Programs, here, stock_workers

ONE = "one request"
MISSED = 3
_REUSE_OFF = {"LLAMA_GRAPH_REUSE_DISABLE": "1"}  # src/llama-context.cpp
_ONE_SLOT = ("-np", "1", "--cache-ram", "0")
_SECONDS = 300.0
_PROMPT = 128  # tokens, of a request that is timed by its answer
_SHORT = 32  # tokens of an answer that is taken off a longer one
_OWN = 0  # the micro batch is meshd's to choose
# what is asked of meshd without a distance, relative to the fastest plain llama.cpp with the same devices
GOALS: Mapping[str, float] = {
    "prompt 512": 0.85,
    "prompt 2048": 0.92,
    "prompt 8190": 0.8,
    ONE: 0.92,
    "8 requests": 0.9,
    "32 requests": 0.9,
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Measure `tries` times; contexts of `context` tokens, in all for many slots too.

    `many`: numbers of requests at once. `rtt`: milliseconds. `until`: of time.monotonic.
    """

    stock: Path
    model: Path
    devices: Sequence[str]
    prompts: Sequence[int]
    many: Sequence[int]
    ubatches: Sequence[int]
    given: Sequence[int]
    rtt: Sequence[int]
    generate: int
    tries: int
    output: Path
    until: float

    @property
    def context(self) -> int:
        return max(self.prompts) + 512

    @property
    def each(self) -> int:
        """Context of one of many slots."""
        return _PROMPT + _SHORT + self.generate + 96

    @property
    def slots(self) -> int:
        return max(self.many)

    @property
    def many_slots(self) -> tuple[str, ...]:
        return ("-np", str(self.slots), "-c", str(self.slots * self.each), "--cache-ram", "0")


@dataclass(slots=True)
class SetUp:
    """A server that answers on `port`. Each prompt is another one. `does_many`: what it is asked.

    `far`: it generates a quarter, as each token has its way to go.
    """

    name: str
    port: int
    does_many: bool
    far: bool = False
    numbers: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def ask(self, tokens: int, generate: int) -> ChatAnswer:
        """Send a request. Raises MeshdError."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        return completion(connection, tokens, generate, number=next(self.numbers))

    def together(self, count: int, generate: int) -> float:
        """Return the seconds until so many requests have been answered. Raises MeshdError."""
        began = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            for one in [pool.submit(self.ask, _PROMPT, generate) for _ in range(count)]:
                one.result()
        return time.monotonic() - began

    def rows(self, plan: Plan) -> list[str]:
        """Return what `rates` measures."""
        if self.does_many:
            return [f"{count} requests" for count in plan.many]
        return [*(f"prompt {tokens}" for tokens in plan.prompts), ONE]

    def rates(self, plan: Plan) -> Iterator[tuple[str, float]]:
        """Measure each row once. Raises MeshdError."""
        generate = plan.generate // 4 if self.far else plan.generate
        if self.does_many:
            for count in plan.many:
                short = self.together(count, _SHORT)
                long = self.together(count, _SHORT + generate)
                if long > short:  # else noise was more than the answers, which is no rate
                    yield f"{count} requests", count * generate / (long - short)
            return
        for tokens in plan.prompts:
            yield f"prompt {tokens}", self.ask(tokens, 1).prompt
        yield ONE, self.ask(_PROMPT, 2 * generate).generate


@dataclass(slots=True)
class Found:
    """Tokens a second of every try, by set-up and row."""

    output: Path
    rates: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    chosen: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, row: str, rate: float) -> None:
        self.rates.setdefault(name, {}).setdefault(row, []).append(round(rate, 2))
        self._write()

    def fail(self, name: str, error: Exception) -> None:
        self.faults.append(f"{name}: {error}")
        sys.stdout.write(f"{name}: {error}\n")
        self._write()

    def lacking(self, expected: Mapping[str, Sequence[str]], tries: int) -> list[str]:
        """Return the set-ups and rows that were measured less often than `tries`."""
        return [
            f"{name}, {row}"
            for name, rows in expected.items()
            for row in rows
            if len(self.rates.get(name, {}).get(row, ())) < tries
        ]

    def _write(self) -> None:
        everything = {"rates": self.rates, "faults": self.faults, "chosen": self.chosen}
        self.output.write_text(json.dumps(everything, indent=1) + "\n")
        lines = [
            *table(self.rates)[0],
            *self.faults,
            *(f"{name}: {how}" for name, how in self.chosen.items()),
        ]
        self.output.with_suffix(".txt").write_text("\n".join(lines) + "\n")


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
            goal = GOALS.get(row) if name.startswith("mesh") and not name.endswith(" ms") else None
            verdict = "" if goal is None else f" goal {goal:g} {'met' if ratio >= goal else 'missed'}"
            met = met and (goal is None or ratio >= goal)
            lines.append(
                f"{row:14} {name:18} {rate:8.0f} ({min(tries):.0f} to {max(tries):.0f}) {ratio:5.2f}{verdict}"
            )
    return lines, met


# --- set-ups


def _suffix(ubatch: int, rtt: int = 0) -> str:
    return (f" u{ubatch}" if ubatch != _OWN else "") + (f" {rtt} ms" if rtt else "")


@dataclass(frozen=True, slots=True)
class _Plain:
    """One llama-server that is to be started, where `place` says."""

    name: str
    place: Callable[[], AbstractContextManager[Place]]
    options: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)

    @contextmanager
    def run(self, plan: Plan) -> Iterator[SetUp]:
        """Raises MeshdError or OSError if it does not come up."""
        many = "many" in self.name
        options = (*self.options, *(() if many else ("-c", str(plan.context))))
        with self.place() as bare:
            place = replace(bare, env={**bare.env, **self.env})
            with stock_server(plan.stock, plan.model, place, options, subprocess.DEVNULL) as port:
                yield SetUp(self.name, port, many, far=self.name.endswith(" ms"))


def _plain(plan: Plan, ways: Sequence[str]) -> Iterator[_Plain]:
    programs = Programs(mesh=plan.stock, stock=plan.stock)
    every, first = partial(here, plan.devices), partial(here, plan.devices[:1])
    for ubatch in plan.ubatches:
        small, end = ("-ub", str(ubatch)), _suffix(ubatch)
        one, many = (*_ONE_SLOT, *small), (*plan.many_slots, *small)
        if "box" in ways:
            yield _Plain(f"box{end}", every, one)
            yield _Plain(f"box, no reuse{end}", every, one, _REUSE_OFF)
            yield _Plain(f"box, many{end}", every, many)
            yield _Plain(f"box, shared, many{end}", every, (*many, "-kvu"))
        if "alone" in ways:
            yield _Plain(f"alone{end}", first, one)
        for rtt in plan.rtt if "rpc" in ways else ():
            workers = partial(stock_workers, programs, plan.devices, subprocess.DEVNULL, rtt)
            yield _Plain(f"rpc{_suffix(ubatch, rtt)}", workers, one)


def _plain_set_ups(stack: ExitStack, plan: Plan, ways: Sequence[str], found: Found) -> list[SetUp]:
    """Start all side by side: most of a start is one thread's work."""
    wanted = list(_plain(plan, ways))
    set_ups = []
    with ThreadPoolExecutor(len(wanted) or 1) as pool:
        started = [(one, pool.submit(_entered, one, plan)) for one in wanted]
    for one, start in started:
        try:
            closing, set_up = start.result()
        except (OSError, MeshdError) as error:
            found.fail(one.name, error)
            continue
        stack.push(closing)
        set_ups.append(set_up)
    return set_ups


def _entered(one: _Plain, plan: Plan) -> tuple[ExitStack, SetUp]:
    with ExitStack() as stack:
        set_up = stack.enter_context(one.run(plan))
        return stack.pop_all(), set_up


async def _mesh(
    owner: Owner, plan: Plan, folder: Path, name: str, rtt: int, options: Sequence[str]
) -> tuple[SetUp, str]:
    """Return it, and what meshd chose. Raises MeshdError."""
    fleet = Fleet(
        FleetSpec(
            folder=folder,
            cache=load().config.paths.cache,
            model=plan.model,
            worker_model=plan.model,
            round_trips=[rtt / 1000] * len(plan.devices),
            head_options=("--device", "none", "--split", "always", "--set", "links.compress=off", *options),
            worker_options=[("--device", device) for device in plan.devices],
        )
    )
    await fleet.start_workers(owner)
    head = await fleet.start_head(owner)
    await until_head_serves(fleet, head)
    status = await head.until(model_ready)
    parts = status.model.split if status.model is not None else ()
    (pid,) = (
        child.pid for child in status.children if child.name == "llama-server" and child.pid is not None
    )
    argv = arguments_of(pid)
    ubatch = argv[argv.index("-ub") + 1] if "-ub" in argv else "llama.cpp's own"
    layers = ", ".join(f"{part.layers} on {part.device} of {part.node}" for part in parts)
    port = int(fleet.api_url(status).rpartition(":")[2])
    return SetUp(name, port, "many" in name, far=rtt > 0), f"micro batch {ubatch}; layers: {layers}"


async def _mesh_set_ups(owner: Owner, plan: Plan, folder: str, found: Found) -> list[SetUp]:
    context, each = ("--ctx-size", str(plan.context)), ("--ctx-size", str(plan.each))
    ways = {
        "mesh": context,
        "mesh, one slot": (*context, "--slots", "1"),
        "mesh, many": (*each, "--slots", str(plan.slots)),
        "mesh, shared, many": ("--", "-kvu", "-np", str(plan.slots), "-c", str(plan.slots * plan.each)),
    }
    set_ups = []
    for rtt, ubatch, (way, options) in itertools.product(plan.rtt, (_OWN, *plan.given), ways.items()):
        place = Path(tempfile.mkdtemp(dir=folder))
        name = way + _suffix(ubatch, rtt)
        small = ("-ub", str(ubatch)) if ubatch != _OWN else ()
        further = ("--", *small) if small and "--" not in options else small
        try:
            set_up, found.chosen[name] = await _mesh(owner, plan, place, name, rtt, (*options, *further))
            set_ups.append(set_up)
        except MeshdError as error:
            found.fail(name, error)
    return set_ups


async def _measure(plan: Plan, ways: Sequence[str], found: Found) -> list[str]:
    """Measure all; return what is lacking."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder, ExitStack() as stack:
        async with Owner() as owner:
            began = time.monotonic()
            set_ups = await asyncio.to_thread(_plain_set_ups, stack, plan, ways, found)
            if "mesh" in ways:
                set_ups += await _mesh_set_ups(owner, plan, folder, found)
            sys.stdout.write(f"{len(set_ups)} set-ups started in {time.monotonic() - began:.0f} s\n")
            # The near ones first: a call that ends early has their figures.
            set_ups.sort(key=lambda one: one.far)
            for number in range(plan.tries + 1):
                for set_up in set_ups:
                    if time.monotonic() < plan.until:
                        await asyncio.to_thread(_try, set_up, plan, found, counts=number > 0)
            owner.cancel()
    return found.lacking({one.name: one.rows(plan) for one in set_ups}, plan.tries)


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
    parser.add_argument("--many", type=numbers, default=[32], help="requests at once")
    parser.add_argument("--ubatch", type=numbers, default=[512])
    parser.add_argument("--given", type=numbers, default=[512], help="micro batches that meshd is given")
    parser.add_argument("--rtt", type=numbers, default=[0], help="milliseconds, between nodes")
    parser.add_argument("--generate", type=int, default=128)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(argv)
    log.set_up(level="error")
    plan = Plan(
        stock=args.stock,
        model=args.model.resolve(),
        devices=args.devices.split(","),
        prompts=args.prompts,
        many=args.many,
        ubatches=args.ubatch,
        given=args.given,
        rtt=args.rtt,
        generate=args.generate,
        tries=args.tries,
        output=args.json,
        until=time.monotonic() + 60 * args.minutes,
    )
    found = Found(plan.output)
    try:
        lacking = run_loop(_measure(plan, args.ways.split(","), found))
    except ExceptionGroup as group:
        raise first_error(group) from group
    lines, met = table(found.rates)
    sys.stdout.write("\n".join(lines) + "\n")
    if lacking:
        sys.stdout.write(f"lacking, or measured less than {plan.tries} times: {'; '.join(lacking)}\n")
    if found.faults or lacking or not found.rates:
        return 1
    return 0 if met else MISSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
