"""Fleets of real daemons for tests: started, watched and ended together, each with a home of its own.

On top of meshd/fleet/fleet.py, which the demo uses as well. What a node wrote is shown when a test fails.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from meshd.admin.api import PingRequest
from meshd.admin.client import ask
from meshd.admin.status import PeerView, Status
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.fleet.fleet import LocalNode, NodeSpec, ready_or_raise
from meshd.model.status import ModelStatus

from tests.conformance.run import run as run_to_end
from tests.e2e.api_client import Api, Connect
from tests.e2e.models import cache_folder, cache_without_models, native, smollm2

T = TypeVar("T")

TEST_SECONDS = 280.0  # of one test; pytest's own limit ends it a little later
PROMPT = "The capital of France is"
# a worker's default, given to the head too: the split must compute as the reference does
THREADS = max(1, (os.cpu_count() or 2) // 2)
SAME_THREADS = ("--", "-t", str(THREADS))
# llama.cpp's own, behind those: what is computed at once rounds otherwise than it does apart
SAME_BATCHES = ("-ub", "512", "-ctxcp", "32")
LOG_LINES = 60
HIT_TRIES = 3  # on a busy machine the rest of an answer may come before a process is hit
CLI_SECONDS = 180.0  # measuring devices takes a minute on a busy machine


def play(work: Coroutine[object, object, T], *, seconds: float = TEST_SECONDS) -> T:
    """Run one asynchronous test."""
    native()  # before the deadline begins: the first test may have to build
    smollm2()
    try:
        return run_to_end(work, seconds=seconds)
    except ExceptionGroup as group:
        raise first_error(group) from group


LOCALLY = ("--set", "links.no_local=false")  # which Fleet.spec sets otherwise


class Fleet:
    """Async context manager: the nodes of one test, in `folder`; all are gone when it is left."""

    def __init__(self, folder: Path, *, cache: Path | None = None) -> None:
        """Without a `cache` of its own workers keep nothing: what one test sent, another must send, too."""
        self._folder = folder
        self._cache = cache
        self._owner = Owner()
        self._nodes: list[LocalNode] = []

    async def __aenter__(self) -> Self:
        await self._owner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for node in self._nodes:
                print_log(node)
        self._owner.cancel()
        await self._owner.__aexit__(kind, error, trace)

    def spec(
        self,
        name: str,
        role: str,
        *options: str,
        home: str = "",
        token: str = "",
        listen: str = "127.0.0.1:0",
        prefix: tuple[str, ...] = (),
    ) -> NodeSpec:
        """Describe a node in this fleet's folder; `home` names its state where that is not its own name.

        All workers take part, however fast the model would be without them, an answer that is interrupted
        ends with an error, each round makes one token, and all traffic crosses the links, as between
        machines, unless its options say otherwise.
        """
        environment = {"MESHD_SPLIT": "always", "MESHD_CONTINUE_ANSWERS": "0", "MESHD_SPECULATE": "off"}
        environment["MESHD_NO_LOCAL"] = "1"
        environment |= {"MESHD_JOIN": token} if token else {}
        if self._cache is None:
            environment["MESHD_KEEP_WEIGHTS"] = "0"
        return NodeSpec(
            name=name,
            role=role,
            home=self._folder / (home or name),
            cache=self._cache or cache_without_models(self._folder),
            options=options,
            listen=listen,
            environment=environment,
            prefix=prefix,
        )

    async def ready(self, head: LocalNode) -> Status:
        """Wait until the model answers. Raises MeshdError when it cannot, or when a node has ended."""

        def done(status: Status) -> bool:
            ready = ready_or_raise(status)
            for node in self._nodes:
                if node.pid is None:
                    raise MeshdError(f"node `{node.spec.name}` has ended")
            return ready

        return await head.until(done)

    def forget(self, node: LocalNode) -> None:
        """This node has ended, and was meant to."""
        self._nodes.remove(node)

    async def start(self, spec: NodeSpec) -> LocalNode:
        """A node under this fleet; its process is there when this returns."""
        node = LocalNode(spec)
        self._nodes.append(node)
        self._owner.start(node.serve(), name=f"node {spec.name}")
        await node.start()
        return node

    async def worker(
        self,
        name: str,
        *options: str,
        model: Path | None = None,
        token: str = "",
        cache: Path | None = None,
    ) -> LocalNode:
        """A worker that has `model`, and a `cache` other than the fleet's if one is named."""
        given = ("--model", str(model)) if model is not None else ()
        spec = self.spec(name, "worker", *given, *options, token=token)
        return await self.start(spec if cache is None else replace(spec, cache=cache))

    async def workers(
        self, *models: Path | None, options: tuple[str, ...] = ()
    ) -> tuple[str, list[LocalNode]]:
        """`worker-0` founds the mesh, the others join it; returns a token and the nodes."""
        first = await self.worker("worker-0", *options, model=models[0])
        token = await first.token()
        others = [
            await self.worker(f"worker-{number}", *options, model=model, token=token)
            for number, model in enumerate(models[1:], start=1)
        ]
        return token, [first, *others]

    async def head(self, model: Path, *options: str, token: str = "", name: str = "head") -> LocalNode:
        """A serving node on a free port; `options` may end with `-- ARGS`."""
        given = ("--model", str(model), "--port", "0")
        return await self.start(self.spec(name, "serve", *given, *options, token=token))


def api_of(status: Status, connect: Connect | None = None) -> Api:
    """The API of a serving node."""
    assert status.api is not None
    return Api(status.api.url, connect)


def model_of(status: Status) -> ModelStatus:
    """The model of a serving node."""
    assert status.model is not None
    return status.model


def peer_of(status: Status, name: str) -> PeerView:
    """The one peer with this name."""
    [peer] = [peer for peer in status.peers if peer.name == name]
    return peer


def child_pid(status: Status, name: str) -> int:
    """Return the pid of the one child with this name."""
    [pid] = [child.pid for child in status.children if child.name == name]
    assert pid is not None
    return pid


async def replaced(node: LocalNode, name: str, pid: int) -> None:
    """Wait until a node runs another child of this name than the one with this pid."""

    def runs(status: Status) -> bool:
        return any(child.name == name and child.pid not in (None, pid) for child in status.children)

    await node.until(runs)


async def ping(node: LocalNode, peer: str) -> float:
    """Round trip in seconds."""
    reply = await asyncio.to_thread(ask, node.spec.home, PingRequest(peer=peer))
    return reply.rtt_ms / 1000


def meshd(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """One call of the command line, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "meshd", *words],
        env=_environment(home, variables),
        capture_output=True,
        text=True,
        timeout=CLI_SECONDS,
        check=False,
    )


async def cli(home: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """As `meshd`, from a test that has nodes running."""
    return await asyncio.to_thread(meshd, home, *words, **variables)


def _environment(home: Path, variables: Mapping[str, str]) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MESHD_")}
    return {**plain, "MESHD_HOME": str(home), "MESHD_CACHE": str(cache_folder()), **variables}


def log_of(node: LocalNode) -> str:
    """Return all that a node wrote until now."""
    return (node.spec.home / "node.log").read_text()


async def has_logged(node: LocalNode, text: str) -> None:
    """Wait for this text in its log: a line may come after what it is about."""
    await node.until(lambda _: text in log_of(node))


def print_log(node: LocalNode) -> None:
    """The last lines of what a node wrote, for pytest to show."""
    log = node.spec.home / "node.log"
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    print(f"--- {node.spec.name} ({log})", *lines[-LOG_LINES:], sep="\n")  # noqa: T201


def descendants(pid: int) -> Iterator[int]:
    """All processes below `pid` now, by their parents in /proc."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (parent := parent_of(int(folder.name))) is not None:
            children.setdefault(parent, []).append(int(folder.name))
    waiting = [pid]
    while waiting:
        found = children.get(waiting.pop(), [])
        waiting += found
        yield from found


def parent_of(pid: int) -> int | None:
    """None when it is gone or only waits to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[1])


async def gone(pids: set[int], *, seconds: float = 10.0) -> None:
    """Wait until none of these processes lives. Raises MeshdError naming those that do."""
    try:
        async with asyncio.timeout(seconds):
            while any(parent_of(pid) is not None for pid in pids):  # noqa: ASYNC110 - not our children
                await asyncio.sleep(0.01)
    except TimeoutError:
        left = {pid for pid in pids if parent_of(pid) is not None}
        raise MeshdError(f"processes are left after {seconds:g} s: {left}") from None
