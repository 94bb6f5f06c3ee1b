"""One measurement of one setup: a fresh load at a distance, a prompt, some tokens.

*meshd*: real daemons in separate networks (fleet/networks.py) with the distance between them. *stock*:
upstream's binaries, with a delaying proxy before each rpc-server. *local*: upstream's llama-server alone. All
get the environment of meshd's programs and the options that meshd's plan gave its llama-server, less `-ot`
and `-lm`, and every load ends with the first token. *defaults*: upstream's binaries as upstream ships them.
"""

import asyncio
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.cells import LOAD_SECONDS, Cell, LoadedCell, Rig
from meshd.bench.figures import (
    DEFAULTS,
    ENDS_ON_CPU,
    LOCAL,
    MESHD,
    STOCK,
    BenchRun,
    without,
)
from meshd.bench.llama import arguments_of, clock, measure, started_at, until_served
from meshd.bench.memory import give_back, take_memory
from meshd.bench.stock_run import plain
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.fleet.node import LocalNode, crossed_bytes, ready_or_raise

WARM_TOKENS, TOKENS = 4, 32


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
    await measure(loaded.place, prompt_tokens=8, tokens=WARM_TOKENS)
    seconds = 0.0
    if rig.prompts and setup != DEFAULTS:  # which is compared by its tokens
        prompt = await measure(loaded.place, prompt_tokens=rig.prompt_tokens, tokens=1)
        seconds = rig.prompt_tokens / prompt.prompt
    decodes = [await measure(loaded.place, prompt_tokens=8, tokens=TOKENS) for _ in range(rig.decodes)]
    token = statistics.median(1 / answer.generate for answer in decodes)
    return replace(run, prompt=seconds, token=token, text=decodes[0].text)
