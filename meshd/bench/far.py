"""One measurement of one way: a fresh load at a distance, a prompt, some tokens.

*meshd*: real daemons in networks of their own (fleet/networks.py), the distance between them. *stock*:
upstream's binaries, a delaying proxy before each rpc-server. *local*: upstream's llama-server alone. *bare*:
our binaries in the place of upstream's, without meshd. *through*: upstream's binaries behind meshd's tunnels.
All get the options that meshd's own plan gave its llama-server, less what only meshd sets.
"""

import asyncio
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from meshd.admin.status import Status
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.counted_rpc import ask_counts, wrap
from meshd.bench.figures import BARE, ENDS, LOCAL, MESHD, STOCK, THROUGH, Counted, Run, without
from meshd.bench.interface import WITHOUT
from meshd.bench.llama import arguments_of, changed, measure, started_at, until_loaded
from meshd.bench.memory import give_back, take_memory
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER, NativeInfo
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.fleet.node import LocalNode, ready_or_raise
from meshd.fleet.proxy import Counts, DelayingProxy, Rules, connect_to
from meshd.fleet.rpc_count import RpcCounts
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ports import listening_socket
from meshd.process.ready import port_open
from meshd.role.command import NO_WARMUP

LOAD_SECONDS = 600.0
PROMPT_TOKENS, WARM_TOKENS, TOKENS = 512, 4, 32
DECODES = 3  # of TOKENS each, of which the median counts
COUNTED_TOKENS = (4, 12)  # two answers of one shape; what they differ by is that of the tokens between
_NOT_STOCK = ("-ot", "-lm")  # of meshd's plan: where the output is, how the file is read
_RPC = ("--rpc", "-dev", "-ts", "-ngl")


@dataclass(frozen=True, slots=True)
class Cell:
    """`workers` at a round trip of `rtt_ms`; with `compute_only` that long for each request for computing.

    `without`: what meshd does without (interface.WITHOUT), empty for nothing. `ends`: one node alone has the
    ends of the model where meshd's head has them, on its processor.
    """

    workers: int
    rtt_ms: float
    compute_only: bool = False
    without: str = ""
    ends: bool = False

    @property
    def head_options(self) -> tuple[str, ...]:
        """Of the serving node, for this cell alone.

        A request for computing is held back from when it is said. With push, all are said at once, and would
        wait side by side: a worker that takes longer does not.
        """
        left_out = self.without or ("push" if self.compute_only else "")
        return (WITHOUT[left_out],) if left_out else ()


@dataclass(frozen=True, slots=True)
class Rig:
    """What all measurements of one call share.

    `devices`: GPUs that the workers have, in turns; one node alone has the first. None: processors only.
    """

    model: Path
    cache: Path
    patched: NativeInfo
    stock: NativeInfo
    speed: bool  # prompt and tokens too, not the load alone
    devices: tuple[str, ...] = ()

    def device(self, number: int) -> tuple[str, ...]:
        """Options of the worker of this number, for meshd's and upstream's programs."""
        return ("--device", self.devices[number % len(self.devices)]) if self.devices else ()

    @property
    def head_options(self) -> tuple[str, ...]:
        """Of a head that computes nothing but what is always its own."""
        return ("--device", "none")


Count = Callable[[], Awaitable[RpcCounts]]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A llama-server that is ready."""

    place: Path
    argv: list[str]
    seconds: float
    count: Count
    counted: RpcCounts  # when it was ready
    sent: int = 0  # bytes between nodes until then


# --- meshd


@asynccontextmanager
async def _meshd(
    rig: Rig, cell: Cell, folder: Path, counted: bool, binaries: Path | None = None
) -> AsyncIterator[Loaded]:
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

    binaries = binaries or rig.patched.bin_dir
    async with Owner() as owner:
        fleet = Fleet(
            FleetSpec(
                folder=folder,
                cache=rig.cache,
                model=rig.model,
                worker_model=rig.model,
                round_trips=[distance] * cell.workers,
                head_options=(*rig.head_options, *cell.head_options, "--native-bin", str(binaries)),
                worker_binaries=wrapped or [binaries] * cell.workers,
                worker_options=[rig.device(number) for number in range(cell.workers)],
            )
        )
        await fleet.start_workers(owner)
        held = await take_memory()
        head = await fleet.start_head(owner)
        place = head.spec.home / "llama.sock"
        owner.start(give_back(held, place), name="memory")
        ready_at = await _loaded_or_failed(place, head)
        at_load, sent = await count(), _crossed(await head.status())
        status = await head.until(ready_or_raise)
        pid = next(child.pid or 0 for child in status.children if child.name == "llama-server")
        yield Loaded(place, arguments_of(pid), ready_at - started_at(pid), count, at_load, sent)
        owner.cancel()


async def _loaded_or_failed(place: Path, head: LocalNode) -> float:
    async with Owner() as owner:
        failed = owner.start(head.until(ready_or_raise), name="watch the head")
        loaded = owner.start(until_loaded(place), name="watch llama-server")
        await asyncio.wait([failed, loaded], timeout=LOAD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not loaded.done():
            raise MeshdError(f"the model was not loaded within {LOAD_SECONDS:.0f} s")
        owner.cancel()
    return loaded.result()


def _crossed(status: Status) -> int:
    return sum(peer.link.sent_bytes + peer.link.received_bytes for peer in status.peers if peer.link)


# --- without meshd


class _Plain:
    """Binaries without meshd, with a distance before each rpc-server."""

    def __init__(
        self, rig: Rig, native: NativeInfo, cell: Cell, folder: Path, owner: Owner, counted: bool
    ) -> None:
        self._rig = rig
        self._native = native
        self._cell = cell
        self._folder = folder
        self._owner = owner
        self._counted = counted
        self.counts = Counts()

    async def worker(self, number: int) -> str:
        """Its endpoint as a head sees it."""
        port = _free_port()
        program = str(self._native.binaries[RPC_SERVER])
        argv = (program, "-H", "127.0.0.1", "-p", str(port), *self._rig.device(number))
        child = OwnedChild(
            ChildSpec(
                name=f"rpc-server {number}",
                argv=argv,
                log=self._folder / f"plain-rpc-{number}.log",
                probe=port_open(port),
            )
        )
        self._owner.start(child.serve(), name="rpc-server")
        await child.ensure_ready()
        seconds = self._cell.rtt_ms / 1000
        compute = seconds if self._cell.compute_only else 0.0
        if not seconds and not self._counted:
            return f"127.0.0.1:{port}"
        listener = listening_socket()
        rules = Rules(one_way=0.0 if compute else seconds / 2, compute=compute, rpc=self._counted)
        proxy = DelayingProxy(
            listener, partial(connect_to, "127.0.0.1", port), rules=rules, counts=self.counts
        )
        self._owner.start(proxy.serve(), name="distance")
        return f"127.0.0.1:{listener.getsockname()[1]}"

    async def llama(self, argv: list[str]) -> Loaded:
        """Loaded; `argv` but for the socket."""
        place = self._folder / "plain.sock"
        self._owner.start(give_back(await take_memory(), place), name="memory")
        argv = changed(argv, {"--host": str(place)})
        child = OwnedChild(
            ChildSpec(
                name="llama-server",
                argv=(str(self._native.binaries[LLAMA_SERVER]), *argv),
                log=self._folder / "plain-llama.log",
            )
        )
        self._owner.start(child.serve(), name="llama-server")
        await child.ensure_ready()
        pid = child.status.pid or 0
        loaded = self._owner.start(until_loaded(place), name="load")
        ended = self._owner.start(child.wait_changed(child.status), name="end")
        await asyncio.wait([loaded, ended], timeout=LOAD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not loaded.done():
            tail = "\n".join(child.status.tail[-8:])
            raise MeshdError(f"llama-server did not load: {child.status.reason}", hint=tail)
        seconds = loaded.result() - started_at(pid)
        return Loaded(place, argv, seconds, self.count, await self.count(), self.counts.up + self.counts.down)

    async def count(self) -> RpcCounts:
        """What was said so far."""
        return replace(self.counts.rpc)


@asynccontextmanager
async def _plain(
    rig: Rig, native: NativeInfo, cell: Cell, argv: list[str], folder: Path, counted: bool
) -> AsyncIterator[Loaded]:
    async with Owner() as owner:
        plain = _Plain(rig, native, cell, folder, owner, counted)
        endpoints = [await plain.worker(number) for number in range(cell.workers)]
        argv = [word for word in argv if word != NO_WARMUP]  # as upstream's load would be
        without: dict[str, str | None] = dict.fromkeys(_NOT_STOCK)
        if endpoints:
            given = changed(argv, {**without, "--rpc": ",".join(endpoints)})
        else:
            threads = str(max(1, (os.cpu_count() or 2) // 2))  # as many as an rpc-server takes
            gone = {} if cell.ends else without
            alone = changed(argv, {"-lm": None, **gone, **dict.fromkeys(_RPC)})
            on_gpu = ["-ngl", "999", "-dev", *rig.devices[:1]]
            given = [*alone, *(on_gpu if rig.devices else ["-ngl", "0", "-dev", "none", "-t", threads])]
        yield await plain.llama(given)
        owner.cancel()


def _free_port() -> int:
    """Stock rpc-server takes a number only; nobody else is expected to take it in the next moment."""
    with listening_socket() as sock:
        return int(sock.getsockname()[1])


# --- measurements


async def run_meshd(rig: Rig, cell: Cell) -> tuple[Run, list[str]]:
    """One run, and the command line that its llama-server got. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name), False) as loaded:
            way = without(cell.without) if cell.without else MESHD
            return await _measured(rig, way, cell, loaded), loaded.argv


async def run_stock(rig: Rig, cell: Cell, argv: list[str]) -> Run:
    """One run; without workers it is one node alone. `argv` as of `run_meshd`. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _plain(rig, rig.stock, cell, argv, Path(name), False) as loaded:
            way = STOCK if cell.workers else ENDS if cell.ends else LOCAL
            return await _measured(rig, way, cell, loaded)


async def run_near(rig: Rig, workers: int, argv: list[str]) -> list[Run]:
    """At no distance: our binaries without meshd, and upstream's with it. Raises MeshdError."""
    cell = Cell(workers, 0.0)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _plain(rig, rig.patched, cell, argv, Path(name), False) as loaded:
            bare = await _measured(rig, BARE, cell, loaded)
    upstream = rig.stock.binaries[RPC_SERVER].parent
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name), False, upstream) as loaded:
            return [bare, await _measured(rig, THROUGH, cell, loaded)]


async def _measured(rig: Rig, way: str, cell: Cell, loaded: Loaded) -> Run:
    run = Run(way=way, workers=cell.workers, rtt_ms=cell.rtt_ms, load=loaded.seconds, load_bytes=loaded.sent)
    if not rig.speed:
        return run
    await measure(loaded.place, prompt_tokens=8, tokens=WARM_TOKENS)
    prompt = await measure(loaded.place, prompt_tokens=PROMPT_TOKENS, tokens=1)
    decodes = [await measure(loaded.place, prompt_tokens=8, tokens=TOKENS) for _ in range(DECODES)]
    token = statistics.median(1 / one.generate for one in decodes)
    return replace(run, prompt=PROMPT_TOKENS / prompt.prompt, token=token, text=decodes[0].text)


async def count_both(rig: Rig, workers: int) -> tuple[Counted, Counted]:
    """What RPC says, meshd's and stock's, at no distance. Raises MeshdError."""
    cell = Cell(workers, 0.0)
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _meshd(rig, cell, Path(name), True) as loaded:
            ours, argv = await _counted(MESHD, workers, loaded), loaded.argv
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
        async with _plain(rig, rig.stock, cell, argv, Path(name), True) as loaded:
            return ours, await _counted(STOCK, workers, loaded)


async def _counted(way: str, workers: int, loaded: Loaded) -> Counted:
    await measure(loaded.place, prompt_tokens=8, tokens=WARM_TOKENS)
    costs = []
    for tokens in COUNTED_TOKENS:
        before = await loaded.count()
        await measure(loaded.place, prompt_tokens=8, tokens=tokens)
        costs.append((await loaded.count()).minus(before))
    less, more = costs
    tokens = COUNTED_TOKENS[1] - COUNTED_TOKENS[0]
    return Counted(
        way=way,
        workers=workers,
        load=loaded.counted,
        token_round_trips=(more.round_trips - less.round_trips) / tokens,
        token_bytes=(more.bytes - less.bytes) / tokens,
    )
