"""Real nodes on this machine: `meshd worker` and `meshd serve` as child processes with their own homes.

What the demo, the benchmarks and the tests drive. A node is ended with its whole group when its owner ends,
however that happens (meshd.process).
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshd.admin.api import StatusRequest
from meshd.admin.client import NotAnswering, NotRunning, ask
from meshd.admin.status import Status
from meshd.base.errors import Broken, MeshdError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.model.status import ModelState
from meshd.process.child import OwnedChild
from meshd.process.interface import ChildFailed, ChildSpec
from meshd.tunnel.interface import LISTEN_LOCAL

TOKEN_PREFIX = "meshd1"
_POLL_SECONDS = 0.1
STOP_SECONDS = 15.0


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
    past_links = (tunnel for tunnel in status.tunnels if tunnel.listen == LISTEN_LOCAL)
    on_links = sum(link.sent_bytes + link.received_bytes for link in links)
    return on_links + sum(tunnel.sent_bytes + tunnel.received_bytes for tunnel in past_links)
