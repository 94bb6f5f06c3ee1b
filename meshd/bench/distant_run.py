"""One measurement of one setup: a fresh load at a distance, a prompt, some tokens.

*meshd*: real daemons in networks of their own (fleet/networks.py), the distance between them. *stock*:
upstream's binaries, a delaying proxy before each rpc-server. *local*: upstream's llama-server alone. *bare*:
our binaries in the place of upstream's, without meshd. *through*: upstream's binaries behind meshd's tunnels.
All get the environment of meshd's programs and the options that meshd's own plan gave its llama-server, less
`-ot` and `-lm`, and of all a load ends with the first token answered. *defaults*: upstream's binaries as
upstream ships them.
"""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.admin.status import Status
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.cells import LOAD_SECONDS, Cell, LoadedCell, Rig
from meshd.bench.counted_rpc import ask_counts, wrap
from meshd.bench.figures import (
    BARE,
    DEFAULTS,
    ENDS_ON_CPU,
    LOCAL,
    MESHD,
    STOCK,
    THROUGH,
    BenchRun,
    Counted,
    without,
)
from meshd.bench.llama import arguments_of, clock, measure, started_at, until_served
from meshd.bench.memory import give_back, take_memory
from meshd.bench.stock_run import plain
from meshd.build.interface import RPC_SERVER
from meshd.config import RPC
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.fleet.node import LocalNode, ready_or_raise
from meshd.fleet.rpc_count import RpcCounts

WARM_TOKENS, TOKENS = 4, 32
COUNTED_TOKENS = (4, 12)  # two answers of one shape; what they differ by is that of the tokens between


@asynccontextmanager
async def _meshd(
    rig: Rig, cell: Cell, folder: Path, counted: bool, binaries: Path | None = None
) -> AsyncIterator[LoadedCell]:
    """`binaries`: those of all nodes, where they are not the rig's own."""
    distance = 0.0 if cell.compute_only else cell.rtt_ms / 1000
    compute = cell.rtt_ms if cell.compute_only else 0.0
    controls = [folder / f"counts-{number}" for number in range(cell.workers if counted or compute else 0)]
    wrapped = [
        await asyncio.to_thread(wrap, rig.patched, folder / f"native-{number}", control, compute)
        for number, control in enumerate(controls)
    ]

    async def count() -> RpcCounts:
        total = RpcCounts()
        for control in controls:
            total = total.plus(await ask_counts(control))
        return total

    binaries = binaries or (rig.patched.bin_dir if rig.protocol == RPC else None)
    named = ("--native-bin", str(binaries)) if binaries is not None else ()
    async with Owner() as owner:
        fleet = Fleet(
            FleetSpec(
                folder=folder,
                cache=rig.cache,
                model=rig.model,
                worker_model=rig.model,
                round_trips=[distance] * cell.workers,
                head_options=(*rig.head_options, *cell.head_options, *named),
                worker_binaries=wrapped or ([binaries] * cell.workers if binaries is not None else ()),
                worker_options=[(*rig.node_options, *rig.device(number)) for number in range(cell.workers)],
            )
        )
        await fleet.start_workers(owner)
        held = await take_memory()
        head = await fleet.start_head(owner)
        place = head.spec.home / "llama.sock"
        owner.start(give_back(held, place), name="memory")
        ready_at = await until_head_serves(fleet, head)
        at_load, sent = await count(), crossed(await head.status())
        status = await head.until(ready_or_raise)
        pid = next(child.pid or 0 for child in status.children if child.name == "llama-server")
        yield LoadedCell(place, arguments_of(pid), ready_at - started_at(pid), count, at_load, sent)
        owner.cancel()


async def until_head_serves(fleet: Fleet, head: LocalNode) -> float:
    """When it was ready, by `clock`."""
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


def crossed(status: Status) -> int:
    """Bytes on the links of a node, both ways."""
    return sum(peer.link.sent_bytes + peer.link.received_bytes for peer in status.peers if peer.link)


async def run_meshd(rig: Rig, cell: Cell) -> tuple[BenchRun, list[str]]:
    """One run, and the command line that its llama-server got. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name), False) as loaded:
            setup = without(cell.without) if cell.without else MESHD
            return await _measured(rig, setup, cell, loaded), loaded.argv


async def run_stock(rig: Rig, cell: Cell, argv: list[str]) -> BenchRun:
    """One run; without workers it is one node alone. `argv` as of `run_meshd`. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with plain(rig, rig.stock, cell, argv, Path(name), False) as loaded:
            alone = ENDS_ON_CPU if cell.ends else LOCAL
            setup = DEFAULTS if cell.defaults else STOCK if cell.workers else alone
            return await _measured(rig, setup, cell, loaded)


async def run_near(rig: Rig, workers: int, argv: list[str]) -> list[BenchRun]:
    """At no distance: our binaries without meshd, and upstream's with it. Raises MeshdError."""
    cell = Cell(workers, 0.0)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with plain(rig, rig.patched, cell, argv, Path(name), False) as loaded:
            bare = await _measured(rig, BARE, cell, loaded)
    upstream = rig.stock.binaries[RPC_SERVER].parent
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name), False, upstream) as loaded:
            return [bare, await _measured(rig, THROUGH, cell, loaded)]


async def _measured(rig: Rig, setup: str, cell: Cell, loaded: LoadedCell) -> BenchRun:
    run = BenchRun(
        setup=setup, workers=cell.workers, rtt_ms=cell.rtt_ms, load=loaded.seconds, load_bytes=loaded.sent
    )
    if not rig.speed:
        return run
    await measure(loaded.place, prompt_tokens=8, tokens=WARM_TOKENS)
    seconds = 0.0
    if rig.prompts and setup not in (BARE, THROUGH, DEFAULTS):  # which are compared by their tokens
        prompt = await measure(loaded.place, prompt_tokens=rig.prompt_tokens, tokens=1)
        seconds = rig.prompt_tokens / prompt.prompt
    decodes = [await measure(loaded.place, prompt_tokens=8, tokens=TOKENS) for _ in range(rig.decodes)]
    token = statistics.median(1 / one.generate for one in decodes)
    return replace(run, prompt=seconds, token=token, text=decodes[0].text)


async def count_both(rig: Rig, workers: int) -> tuple[Counted, Counted]:
    """What RPC says, meshd's and stock's, at no distance. Raises MeshdError."""
    cell = Cell(workers, 0.0)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name), True) as loaded:
            ours, argv = await _counted(MESHD, workers, loaded), loaded.argv
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with plain(rig, rig.stock, cell, argv, Path(name), True) as loaded:
            return ours, await _counted(STOCK, workers, loaded)


async def _counted(setup: str, workers: int, loaded: LoadedCell) -> Counted:
    await measure(loaded.place, prompt_tokens=8, tokens=WARM_TOKENS)
    costs = []
    for tokens in COUNTED_TOKENS:
        before = await loaded.count()
        await measure(loaded.place, prompt_tokens=8, tokens=tokens)
        costs.append((await loaded.count()).minus(before))
    less, more = costs
    tokens = COUNTED_TOKENS[1] - COUNTED_TOKENS[0]
    return Counted(
        setup=setup,
        workers=workers,
        load=loaded.counted,
        token_round_trips=(more.round_trips - less.round_trips) / tokens,
        token_bytes=(more.bytes - less.bytes) / tokens,
    )
