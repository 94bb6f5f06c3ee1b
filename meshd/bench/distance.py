"""`meshd bench load|nodes|latency`: stock llama.cpp beside meshd over a distance, in turns, in one run.

One measurement of one setup: a fresh load at a distance, a prompt, some tokens.

*meshd*: real daemons in separate networks (fleet/networks.py) with the distance between them. *stock*:
upstream's binaries, with a delaying proxy before each rpc-server. *local*: upstream's llama-server alone. All
get the environment of meshd's programs and the options that meshd's plan gave its llama-server, less `-ot`
and `-lm`, and every load ends with the first token. *defaults*: upstream's binaries as upstream ships them.

Measure how long a byte really takes one way through the delaying proxy of a distance (fleet/proxy.py).

The proxy is a program on the same cores: it wakes, reads and writes. That time counts as distance, not as
time of the measured program.
"""

import asyncio
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.figures import (
    DEFAULTS,
    ENDS_ON_CPU,
    LOCAL,
    MESHD,
    STOCK,
    BenchRun,
    Figures,
    Promise,
    cell_table,
    count_of,
    defaults_table,
    promise_table,
    promises,
    without,
)
from meshd.bench.interface import BenchOutput, DistanceArgs, Json
from meshd.bench.llama import arguments_of, clock, started_at, until_served
from meshd.bench.llama import measure as measure_answer
from meshd.bench.rig import (
    DECODES,
    LOAD_SECONDS,
    Cell,
    LoadedCell,
    Rig,
    give_back,
    plain,
    programs_and_model,
    take_memory,
)
from meshd.build.pin import read_pin
from meshd.fleet.fleet import Fleet, FleetSpec, LocalNode, crossed_bytes, ready_or_raise
from meshd.fleet.networks import need_namespaces
from meshd.fleet.proxy import listening_socket, run_loop
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ready import port_open

WARM_TOKENS, TOKENS = 4, 32
_ROUND_TRIPS = 25
MESSAGE = b"t" * 2400  # about what a token's activations are


@asynccontextmanager
async def _meshd(rig: Rig, cell: Cell, folder: Path) -> AsyncIterator[LoadedCell]:
    """Load with meshd. The head lends no device, so it computes only the layers that are always its own."""
    async with Owner() as owner:
        fleet = Fleet(
            FleetSpec(
                folder=folder,
                cache=rig.cache,
                model=rig.model,
                worker_model=rig.model,
                round_trips=[cell.rtt_ms / 1000] * cell.workers,
                head_options=("--device", "none", *cell.head_options),
                worker_options=[rig.device(number) for number in range(cell.workers)],
            )
        )
        await fleet.start_workers(owner)
        held = await take_memory()
        head = await fleet.start_head(owner)
        place = head.spec.home / "llama.sock"
        owner.start(give_back(held, place), name="memory")
        ready_at = await until_head_serves(fleet, head)
        sent = crossed_bytes(await head.status())
        status = await head.until(ready_or_raise)
        pid = next(child.pid or 0 for child in status.children if child.name == "llama-server")
        yield LoadedCell(place, arguments_of(pid), ready_at - started_at(pid), sent)
        owner.cancel()


async def until_head_serves(fleet: Fleet, head: LocalNode) -> float:
    """Wait until the head's API is ready; return when that was, by `clock`. Raises MeshdError."""
    url = fleet.api_url(await head.until(lambda status: bool(fleet.api_url(status))))
    async with Owner() as owner:
        failed = owner.start(head.until(ready_or_raise), name="watch the head")
        served = owner.start(until_served(url), name="watch the API")
        await asyncio.wait([served], timeout=LOAD_SECONDS)
        ready_at = clock()
        if not served.done():
            raise MeshdError(f"the model was not loaded within {LOAD_SECONDS:.0f} s")
        failed.cancel()
    return ready_at


async def run_meshd(rig: Rig, cell: Cell) -> tuple[BenchRun, list[str]]:
    """Measure meshd once; return also the command line of its llama-server. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name)) as loaded:
            setup = without(cell.without) if cell.without else MESHD
            return await _measured(rig, setup, cell, loaded), loaded.argv


async def run_stock(rig: Rig, cell: Cell, argv: list[str]) -> BenchRun:
    """Measure stock once, without workers on one node. `argv`: from `run_meshd`. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with plain(rig, cell, argv, Path(name)) as loaded:
            alone = ENDS_ON_CPU if cell.ends else LOCAL
            setup = DEFAULTS if cell.defaults else STOCK if cell.workers else alone
            return await _measured(rig, setup, cell, loaded)


async def _measured(rig: Rig, setup: str, cell: Cell, loaded: LoadedCell) -> BenchRun:
    run = BenchRun(
        setup=setup, workers=cell.workers, rtt_ms=cell.rtt_ms, load=loaded.seconds, load_bytes=loaded.sent
    )
    if not rig.speed:
        return run
    await measure_answer(loaded.place, prompt_tokens=8, tokens=WARM_TOKENS)
    seconds = 0.0
    if rig.prompts and setup != DEFAULTS:  # which is compared by its tokens
        prompt = await measure_answer(loaded.place, prompt_tokens=rig.prompt_tokens, tokens=1)
        seconds = rig.prompt_tokens / prompt.prompt
    decodes = [await measure_answer(loaded.place, prompt_tokens=8, tokens=TOKENS) for _ in range(rig.decodes)]
    token = statistics.median(1 / answer.generate for answer in decodes)
    return replace(run, prompt=seconds, token=token, text=decodes[0].text)


async def measure_one_way(round_trips: Iterable[float]) -> dict[float, float]:
    """Measure the seconds one way for each round trip in ms but 0, which has no proxy. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        return {rtt: await _one_way(rtt, Path(name)) for rtt in round_trips if rtt}


async def _one_way(rtt_ms: float, folder: Path) -> float:
    """Return half the time that a proxy of `rtt_ms` adds to a round trip, from medians."""
    async with Owner() as owner:
        server = await asyncio.start_server(_echo, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            with listening_socket() as free:
                near = int(free.getsockname()[1])
            proxy = OwnedChild(_proxy(near, port, rtt_ms, folder))
            owner.start(proxy.serve(), name="distance")
            await proxy.ensure_ready()
            through, direct = await _round_trip(near), await _round_trip(port)
        owner.cancel()
    return (through - direct) / 2


def _proxy(near: int, port: int, rtt_ms: float, folder: Path) -> ChildSpec:
    argv = (sys.executable, "-m", "meshd.bench.latency_proxy", str(near), str(port), f"{rtt_ms:g}")
    return ChildSpec(name="distance", argv=argv, log=folder / "distance.log", probe=port_open(near))


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except ConnectionError:
        return  # the proxy resets what it still has at its end
    finally:
        writer.close()


async def _round_trip(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    clock = asyncio.get_running_loop().time
    took = []
    try:
        for _ in range(_ROUND_TRIPS):
            began = clock()
            writer.write(MESSAGE)
            await reader.readexactly(len(MESSAGE))
            took.append(clock() - began)
    finally:
        writer.close()
    return statistics.median(took)


def run(args: DistanceArgs, out: BenchOutput) -> int:
    """Measure and print. Returns 0 if all promises held and no text differs, else 1. Raises MeshdError."""
    log.set_up(level="error")
    figures = measure(args, out)
    kept = promises(figures)
    if args.as_json:
        out.json({"machine": machine(), "what": args.what, **as_json(figures, kept)})
    else:
        show(figures, kept, out)
        out.note(f"{machine()}; {args.pairs} of each, medians")
    return 0 if all(promise.held for promise in kept) and not figures.texts_differ() else 1


def measure(args: DistanceArgs, out: BenchOutput) -> Figures:
    """Measure all cells. Raises MeshdError."""
    try:
        return run_loop(measure_figures(args, out))
    except ExceptionGroup as group:
        raise first_error(group) from None


async def measure_figures(args: DistanceArgs, out: BenchOutput) -> Figures:
    if any(args.round_trips):
        need_namespaces()
    native, model = await programs_and_model(args.cache, args.model, out)
    decodes = 1 if args.pairs >= DECODES else DECODES
    speed = args.what != "load"
    rig = Rig(model, args.cache, native, speed=speed, decodes=decodes, prompts=args.prompts)
    runs: list[BenchRun] = []
    one_way: dict[float, list[float]] = {}
    for number in range(args.pairs):
        alone = True
        for workers in args.workers:
            for rtt in args.round_trips:
                cell = Cell(workers, rtt)
                out.progress(f"{number + 1} of {args.pairs}: {count_of(workers, 'worker')}, {rtt:g} ms")
                ours, argv = await run_meshd(rig, cell)
                runs += [ours, await run_stock(rig, cell, argv)]
                if workers == args.defaults:
                    runs.append(await run_stock(rig, replace(cell, defaults=True), argv))
                for what in args.without if workers > 1 and rtt else ():  # with one there is nothing to push
                    runs.append((await run_meshd(rig, replace(cell, without=what)))[0])
                if alone:
                    runs.append(await run_stock(rig, Cell(0, 0.0), argv))
                    alone = False
        if rig.speed:
            for rtt, seconds in (await measure_one_way(args.round_trips)).items():
                one_way.setdefault(rtt, []).append(seconds)
    middle = {rtt: statistics.median(measured) for rtt, measured in one_way.items()}
    return Figures(tuple(runs), middle)


def show(figures: Figures, kept: Sequence[Promise], out: BenchOutput) -> None:
    """Print the figures as tables."""
    for headers, rows in (cell_table(figures), defaults_table(figures), promise_table(kept)):
        if rows:
            out.table(headers, rows)
            out.line()
    for run in figures.texts_differ():
        out.line(f"another text than one node's: {run}")


def machine() -> str:
    """Describe this machine in a few words."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # no Linux, or no x86
    return f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores of {model}"


def programs() -> str:
    """Describe the measured programs: upstream's commit and our sources."""
    pin = read_pin()
    return f"llama.cpp {pin.commit[:9]}, sources {pin.sources_sha256[:12]}"


def as_json(figures: Figures, kept: Sequence[Promise]) -> Mapping[str, Json]:
    """Return the figures as JSON, for scripts."""
    return {
        "runs": [_of_setup(run) for run in figures.runs],
        "ways": {f"{rtt:g}": seconds for rtt, seconds in figures.one_way.items()},
        "promises": [{**asdict(promise), "held": promise.held} for promise in kept],
    }


def _of_setup(run: BenchRun) -> dict[str, Json]:
    fields = asdict(run)
    return {"way": fields.pop("setup"), **fields}
