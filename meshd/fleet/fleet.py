"""Real nodes on this machine, and a head with its workers as far apart as asked.

A LocalNode is `meshd worker` or `meshd serve` as a child process with its own home. The demo, the benchmarks
and the tests drive it. It is ended with its whole group when its owner ends, however that happens
(meshd.process).
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from meshd.admin.api import StatusRequest
from meshd.admin.client import NotAnswering, NotRunning, ask
from meshd.admin.status import Status
from meshd.base.errors import Broken, MeshdError, UserError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.fleet.networks import API_PORT, FleetPlace, listen_address, need_namespaces
from meshd.model.output import NEAR_SECONDS
from meshd.model.status import ModelState
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildFailed, ChildSpec
from meshd.process.ready import LineSeen
from meshd.tunnel.interface import PAST_LINKS

HEAD_NAME = "head"
TOKEN_PREFIX = "meshd1"
_POLL_SECONDS = 0.1
STOP_SECONDS = 15.0
# Runs the program behind it on the processors that it names: not every system has `taskset`
_PINNED = """
import os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """`role` is `worker` or `serve`, `options` its further options; `home` is made if need be.

    `prefix` is a program that runs the daemon in its own place (`nsenter`, say, for another network).
    """

    name: str
    role: str
    home: Path
    cache: Path
    options: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"
    environment: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()


class LocalNode:
    """One daemon; start it again after `stop` or a kill as often as needed."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        self._token = ""
        self._owner = Owner()
        self._is_owned = asyncio.Event()
        self._child = OwnedChild(self._child_spec)
        self._run: asyncio.Task[None] | None = None

    def _child_spec(self) -> ChildSpec:
        spec = self.spec
        spec.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        program = (*spec.prefix, sys.executable, "-m", "meshd")
        argv = (*program, spec.role, "--name", spec.name, "--listen", spec.listen, *spec.options)
        return ChildSpec(
            name=f"meshd {spec.role}",
            argv=argv,
            log=spec.home / "node.log",
            env={"MESHD_HOME": str(spec.home), "MESHD_CACHE": str(spec.cache), **spec.environment},
            on_line=self._line,
            log_filter=without_token,
            stamped=False,
            stop_timeout=STOP_SECONDS,
        )

    def _line(self, line: str) -> None:
        if is_token(line):
            self._token = line

    @property
    def pid(self) -> int | None:
        """The daemon's process id, while it runs."""
        return self._child.status.pid

    async def serve(self) -> None:
        """Own the process until cancelled."""
        async with self._owner:
            self._is_owned.set()
            await asyncio.Event().wait()

    async def start(self) -> None:
        """Start the daemon; return when the process is there. Raises MeshdError."""
        await self._is_owned.wait()
        self._token = ""
        self._child = OwnedChild(self._child_spec)
        self._run = self._owner.start(self._child.serve(), name="process")
        await self._child.ensure_ready()

    async def stop(self) -> None:
        """End the daemon by SIGTERM, and wait for the end."""
        if self._run is not None:
            await cancel_and_wait(self._run)

    async def token(self) -> str:
        """Return the invite that it prints. Raises ChildFailed when it ends before."""
        while not self._token:
            self._check_alive()
            await asyncio.sleep(_POLL_SECONDS)
        return self._token

    async def status(self) -> Status:
        """Return its status as `meshd status`. Raises NotRunning, Broken."""
        return await asyncio.to_thread(ask, self.spec.home, StatusRequest())

    async def until(
        self, ready: Callable[[Status], bool], *, on_status: Callable[[Status], None] | None = None
    ) -> Status:
        """Wait until `ready` holds for the status. Raises ChildFailed when the daemon ends before."""
        while True:
            self._check_alive()
            try:
                status = await self.status()
            except (NotRunning, NotAnswering, Broken):
                pass  # not up yet
            else:
                if ready(status):
                    return status
                if on_status is not None:
                    on_status(status)
            await asyncio.sleep(_POLL_SECONDS)

    def _check_alive(self) -> None:
        status = self._child.status
        if not status.is_up:
            lines = "\n".join(status.tail[-12:])
            raise ChildFailed(
                f"node `{self.spec.name}` has ended: {status.reason}", hint=lines, tail=status.tail
            )


def is_token(line: str) -> bool:
    """Return True if a line of output is an invite."""
    return line.startswith(TOKEN_PREFIX) and " " not in line


def without_token(line: str) -> str:
    """Return a line as the log may contain it: without the invite, which would admit any reader."""
    return "[the invite]" if is_token(line) else line


def model_ready(status: Status) -> bool:
    """Return True if the present split has generated a real token, and the API takes requests.

    The two happen side by side: the gateway is made while the model loads.
    """
    return status.api is not None and status.model is not None and status.model.state is ModelState.READY


def ready_or_raise(status: Status) -> bool:
    """Return `model_ready`. Raises MeshdError with the reason when the model cannot be served as things
    stand.
    """
    if status.model is not None and status.model.state is ModelState.FAILED:
        raise MeshdError(status.model.reason)
    return model_ready(status)


async def start_all(owner: Owner, *nodes: LocalNode) -> None:
    """Start nodes side by side under `owner`."""
    for node in nodes:
        owner.start(node.serve(), name=f"node {node.spec.name}")
    for node in nodes:
        await node.start()


def crossed_bytes(status: Status) -> int:
    """Count the bytes between this node and others, over links and direct connections."""
    links = (peer.link for peer in status.peers if peer.link is not None)
    past_links = (tunnel for tunnel in status.tunnels if tunnel.listen in PAST_LINKS)
    on_links = sum(link.sent_bytes + link.received_bytes for link in links)
    return on_links + sum(tunnel.sent_bytes + tunnel.received_bytes for tunnel in past_links)


async def apart(owner: Owner, argv: Sequence[str], folder: Path) -> FleetPlace:
    """Run `argv`, which creates networks as networks.py does. Raises UserError."""
    need_namespaces()
    seen = LineSeen(r'^\{"pid"')
    child = OwnedChild(
        ChildSpec(
            name="networks",
            argv=argv,
            log=folder / "networks.log",
            stamped=False,
            probe=seen,
            on_line=seen.see,
        )
    )
    owner.start(child.serve(), name="networks")
    try:
        await child.ensure_ready()
    except ChildFailed as error:
        reason = error.tail[-1] if error.tail else error.what
        raise UserError(
            f"cannot create networks: {reason}", hint="run this as root, or allow user namespaces"
        ) from None
    found = json.loads(seen.line)
    return FleetPlace(int(found["pid"]), tuple(map(int, found["networks"])), int(found["api_port"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSpec:
    """`round_trips`: one worker for each, so many seconds from the head; nothing is put between if all are 0.

    `worker_model` is the workers' file, None: they have none. The head waits for all of them.
    `worker_options`: what else each worker is told, where anything.
    `environments`: variables of nodes, by their names (HEAD_NAME, worker_names).
    `cores`: the processors that each worker may use, where not all.
    """

    folder: Path
    cache: Path
    model: Path
    worker_model: Path | None
    round_trips: Sequence[float]
    head_options: tuple[str, ...] = ()
    worker_options: Sequence[tuple[str, ...]] = ()
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cores: Sequence[Sequence[int]] = ()


def worker_names(count: int) -> list[str]:
    """Return the names of a fleet's workers."""
    return ["worker"] if count == 1 else [f"worker-{number}" for number in range(1, count + 1)]


class Fleet:
    """The nodes; `start_workers`, then `start_head`. They end with their owner."""

    is_on_loopback: ClassVar[bool] = True  # there a node does not compress by itself

    def __init__(self, spec: FleetSpec) -> None:
        self.spec = spec
        self._place: FleetPlace | None = None
        self._token = ""
        self.workers: list[LocalNode] = []

    async def connect(self, owner: Owner) -> FleetPlace | None:
        """Create a network for each node, so far apart; None: nothing is between them. Raises UserError."""
        far = list(self.spec.round_trips)
        if not any(far):
            return None
        argv = (sys.executable, "-m", "meshd.fleet.networks", json.dumps(far))
        return await apart(owner, argv, self.spec.folder)

    def listen_address(self, number: int) -> str:
        """Return where a node listens in its network."""
        return listen_address(number)

    async def start_workers(self, owner: Owner) -> None:
        """Start the workers; the first one founds the mesh. Raises MeshdError."""
        spec = self.spec
        self._place = await self.connect(owner)
        has = ("--model", str(spec.worker_model)) if spec.worker_model is not None else ()
        for number, name in enumerate(worker_names(len(spec.round_trips)), 1):
            more = [word for words in spec.worker_options[number - 1 : number] for word in words]
            worker = LocalNode(self._node(number, name, "worker", (*has, *more)))
            self.workers.append(worker)
            await start_all(owner, worker)
            self._token = self._token or await worker.token()

    async def start_head(self, owner: Owner, *more: str) -> LocalNode:
        """Start the head's process; of an option that is given twice the last one counts.

        Another head may follow over the same workers once it has ended. Raises MeshdError.
        """
        spec = self.spec
        port = API_PORT if self._place is not None else 0
        least = ("--min-workers", str(len(spec.round_trips)))
        is_far = self.is_on_loopback and max(spec.round_trips, default=0.0) >= NEAR_SECONDS
        far = ("--set", "links.compress=on") if is_far else ()
        # what is compared computes one token at a time, on all workers
        alike = ("--split", "always", "--speculate", "off")
        given = ("--model", str(spec.model), "--port", str(port), *alike)
        options = (*given, *least, *far, *spec.head_options, *more)
        head = LocalNode(self._node(0, HEAD_NAME, "serve", options))
        await start_all(owner, head)
        return head

    def api_url(self, status: Status) -> str:
        """Return the head's API, as it is reached from here; empty while it has none."""
        if self._place is not None:
            return f"http://127.0.0.1:{self._place.api_port}"
        return status.api.url if status.api is not None else ""

    def _node(self, number: int, name: str, role: str, options: tuple[str, ...]) -> NodeSpec:
        place = self._place
        own = self.spec.environments.get(name, {})
        cores = self.spec.cores[number - 1] if 0 < number <= len(self.spec.cores) else ()
        pinned = (sys.executable, "-c", _PINNED, ",".join(map(str, cores))) if cores else ()
        return NodeSpec(
            name=name,
            role=role,
            home=self.spec.folder / name,
            cache=self.spec.cache,
            options=options,
            listen=self.listen_address(number) if place is not None else "127.0.0.1:0",
            environment={**own, **({"MESHD_JOIN": self._token} if self._token else {})},
            prefix=(*(place.prefix(number) if place is not None else ()), *pinned),
        )
