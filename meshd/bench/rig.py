"""The rig of a measurement: programs and a model, its cells, and a load without meshd.

A load without meshd runs upstream's binaries, with a distance before each rpc-server.

Memory is kept at hand for the start of a load. A virtual machine that reports its free pages loses them to
its host two seconds later, and has to fetch each again: 2 ms per MB on the machine of
docs/lab/performance.md, which is twice the rest of a load. On such machines some memory is held and released
the moment llama-server starts, for stock and meshd alike.
"""

import asyncio
import mmap
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, in_thread
from meshd.bench.interface import WITHOUT, BenchOutput
from meshd.bench.llama import changed, clock, first_token, started_at
from meshd.build.fetch import demo_model
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER, BuildProgress, NativeInfo
from meshd.build.native import build
from meshd.devices.command_lines import CALM_THREADS, LARGE_PAGES, NO_WARMUP
from meshd.fleet.proxy import Counts, DelayingProxy, ProxyRules, connect_to, listening_socket
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildSpec
from meshd.process.ready import port_open

LOAD_SECONDS = 600.0
DECODES = 3  # of TOKENS each, of which the median counts, where a cell has fewer runs than that


AT_HAND = 512 << 20
SAMPLE_SECONDS = 0.004
_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
_LARGEST_ORDER = 20  # beyond every kernel's; what is not set is larger, or negative
_NOT_STOCK = ("-ot", "-lm")  # of meshd's plan: where the output is, how the file is read
_SPLIT = ("-dev", "-ts", "-ngl")
_OF_WORKER = re.compile(r"=MESH[0-9]+(?=,|$)")  # in `-ot`
_OWN_CHOICE = (NO_WARMUP, "-nr")  # and `--cache-ram 0`: what upstream does otherwise unless it is told


async def programs_and_model(cache: Path, model: Path | None, out: BenchOutput) -> tuple[NativeInfo, Path]:
    """Build upstream's programs and ours; return them and `model`, or SmolLM2. Raises MeshdError."""

    def progress(step: BuildProgress) -> None:
        out.progress(step.text, step.done / step.total if step.total else None)

    native = await build(cache, progress=progress)
    return native, model if model is not None else await demo_model(cache, progress)


@dataclass(frozen=True, slots=True)
class Cell:
    """One setup to measure: `workers` at a round trip of `rtt_ms`.

    `without`: the part of meshd to disable (interface.WITHOUT), if any. `ends`: one node alone has the ends
    of the model on its processor, as meshd's head does. `defaults`: stock as upstream ships it.
    """

    workers: int
    rtt_ms: float
    without: str = ""
    ends: bool = False
    defaults: bool = False

    @property
    def head_options(self) -> tuple[str, ...]:
        """The serving node's options for this cell."""
        return ("--set", WITHOUT[self.without]) if self.without else ()


@dataclass(frozen=True, slots=True)
class Rig:
    """The inputs that all measurements of one call share.

    `devices`: the GPUs that workers use in turns; a node alone uses the first. Empty: processors only.
    """

    model: Path
    cache: Path
    native: NativeInfo
    speed: bool  # prompt and tokens too, not the load alone
    devices: tuple[str, ...] = ()
    decodes: int = DECODES
    prompts: bool = True  # of `prompt_tokens`, too
    prompt_tokens: int = 512

    def device(self, number: int) -> tuple[str, ...]:
        """Return the options of worker `number`, for meshd's and upstream's programs."""
        return ("--device", self.devices[number % len(self.devices)]) if self.devices else ()


@dataclass(frozen=True, slots=True)
class LoadedCell:
    """A llama-server that has loaded its model."""

    place: Path
    argv: list[str]
    seconds: float
    sent: int  # bytes between nodes until then


def is_lent() -> bool:
    """Return True if this machine reports its free pages to a host (Linux, mm/page_reporting.c)."""
    try:
        return 0 < int(_ORDER.read_text(encoding="ascii")) < _LARGEST_ORDER
    except (OSError, ValueError):
        return False


async def take_memory() -> mmap.mmap | None:
    """Allocate memory to hold until a load begins; None if free pages are not reported."""
    return await in_thread(_take) if is_lent() else None


def _take() -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":
        flags |= mmap.MAP_POPULATE
    return mmap.mmap(-1, AT_HAND, flags=flags)


async def give_back(held: mmap.mmap | None, place: Path) -> None:
    """Release the memory when llama-server makes its socket at `place`, which is before it loads."""
    if held is None:
        return
    while not place.exists():  # noqa: ASYNC110, ASYNC240 - another program makes it; a look takes microseconds
        await asyncio.sleep(SAMPLE_SECONDS)
    await in_thread(held.close)


class Plain:
    """Upstream's binaries, with a distance before each rpc-server."""

    def __init__(self, rig: Rig, cell: Cell, folder: Path, owner: Owner) -> None:
        self._rig = rig
        self._cell = cell
        self._folder = folder
        self._owner = owner
        self._counts = Counts()

    async def worker(self, number: int) -> str:
        """Start worker `number`; return its endpoint as a head sees it."""
        port = await start_rpc_server(
            self._owner,
            self._rig.native,
            self._folder / f"plain-rpc-{number}.log",
            options=self._rig.device(number),
            environment={} if self._cell.defaults else CALM_THREADS,
        )
        if not self._cell.rtt_ms:
            return f"127.0.0.1:{port}"
        listener = listening_socket()
        rules = ProxyRules(one_way=self._cell.rtt_ms / 2000)
        connect = partial(connect_to, "127.0.0.1", port)
        proxy = DelayingProxy(listener, connect, rules=rules, counts=self._counts)
        self._owner.start(proxy.serve(), name="distance")
        return f"127.0.0.1:{listener.getsockname()[1]}"

    async def llama(self, argv: list[str]) -> LoadedCell:
        """Start llama-server with `argv` and wait for its first token. Raises MeshdError."""
        place = self._folder / "plain.sock"
        self._owner.start(give_back(await take_memory(), place), name="memory")
        argv = changed(argv, {"--host": str(place)})
        child = OwnedChild(
            ChildSpec(
                name="llama-server",
                argv=(str(self._rig.native.binaries[LLAMA_SERVER]), *argv),
                log=self._folder / "plain-llama.log",
                env={} if self._cell.defaults else CALM_THREADS | LARGE_PAGES,
            )
        )
        self._owner.start(child.serve(), name="llama-server")
        await child.ensure_ready()
        pid = child.status.pid or 0
        loaded = self._owner.start(first_token(place), name="load")
        ended = self._owner.start(child.wait_changed(child.status), name="end")
        await asyncio.wait([loaded, ended], timeout=LOAD_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        ready_at = clock()
        if not loaded.done():
            tail = "\n".join(child.status.tail[-8:])
            raise MeshdError(f"llama-server did not load: {child.status.reason}", hint=tail)
        seconds = ready_at - started_at(pid)
        return LoadedCell(place, argv, seconds, self._counts.up + self._counts.down)


async def start_rpc_server(
    owner: Owner,
    native: NativeInfo,
    log: Path,
    *,
    options: tuple[str, ...] = (),
    environment: Mapping[str, str] = CALM_THREADS,
) -> int:
    """Start upstream's rpc-server as a child of `owner`; return its port. Raises MeshdError."""
    port = _free_port()
    argv = (str(native.binaries[RPC_SERVER]), "-H", "127.0.0.1", "-p", str(port), *options)
    child = OwnedChild(
        ChildSpec(name=log.stem, argv=argv, log=log, env=environment, probe=port_open(port)),
    )
    owner.start(child.serve(), name="rpc-server")
    await child.ensure_ready()
    return port


@asynccontextmanager
async def plain(rig: Rig, cell: Cell, argv: list[str], folder: Path) -> AsyncIterator[LoadedCell]:
    async with Owner() as owner:
        stock = Plain(rig, cell, folder, owner)
        endpoints = [await stock.worker(number) for number in range(cell.workers)]
        without: dict[str, str | None] = dict.fromkeys(_NOT_STOCK)
        if cell.defaults:
            argv = [word for word in argv if word not in _OWN_CHOICE]
            without["--cache-ram"] = None
        if endpoints:
            given = changed(over_rpc(argv, cell.workers), {**without, "--rpc": ",".join(endpoints)})
        else:
            given = alone(argv if cell.ends else changed(argv, without), rig.devices)
        yield await stock.llama(given)
        owner.cancel()


def over_rpc(argv: list[str], workers: int) -> list[str]:
    """Change a command line of meshd's llama-server to upstream's RPC with the same split."""
    devices = ",".join(f"RPC{number}" for number in range(workers))
    return ["--rpc", "", *changed(argv, {"-dev": devices})]


def alone(argv: list[str], devices: Sequence[str]) -> list[str]:
    """Change a command line to one node: to its first GPU, or else its processor, with all layers."""
    threads = str(max(1, (os.cpu_count() or 2) // 2))  # as many as an rpc-server takes
    place = ["-ngl", "999", "-dev", devices[0]] if devices else ["-ngl", "0", "-dev", "none", "-t", threads]
    kept = changed(argv, {"-lm": None, **dict.fromkeys(_SPLIT)})
    if "-ot" in kept:
        at = kept.index("-ot") + 1
        kept[at] = _OF_WORKER.sub(f"={devices[0] if devices else 'CPU'}", kept[at])
    return [*kept, *place]


def _free_port() -> int:
    """Find a free port. Stock rpc-server takes only a number, so another program could take it first."""
    with listening_socket() as sock:
        return int(sock.getsockname()[1])
