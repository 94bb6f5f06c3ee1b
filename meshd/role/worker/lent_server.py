"""The server process of one lease: started for it, watched, ended with it; whatever protocol it speaks."""

import asyncio
import signal
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.identity.keys import PeerId
from meshd.peer.interface import Stream
from meshd.process.interface import ChildSpec
from meshd.role.head.load_report import count_of
from meshd.role.interface import Processes, Report
from meshd.role.native.fd_handover import Outgoing
from meshd.role.worker.known_files import Weights
from meshd.role.worker.leases import Lease
from meshd.role.worker.push_neighbours import PushNeighbours
from meshd.rpc.hang_detector import LOOK_SECONDS
from meshd.store.interface import LeaseCache
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import RPC_SERVER_CRASHED, RPC_SERVER_ENDED

PROGRESS_SECONDS = 2.0
SHOWN_MISSES = 12  # by name in the log: a worker without a file misses all; the head's status names them
# None of these comes from somebody else
CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
LOG = log.get("worker")

OnBroken = Callable[[MeshdError], None]


@dataclass(frozen=True, slots=True)
class AgreedLease:
    """A lease that is taken: its devices in the order of the offer, and the weights known at that moment.

    `on_cpu`: none of the devices is a GPU.
    """

    lease: Lease
    devices: tuple[str, ...]
    weights: Weights | None
    on_cpu: bool

    @property
    def lease_cache(self) -> LeaseCache | None:
        """What is kept of weights that come over the network."""
        return None if self.weights is None else self.weights.lease_cache

    @property
    def memory(self) -> list[int]:
        """Bytes of each device."""
        return [self.lease.memory[name] for name in self.devices]


class LentServer(ABC):
    """`child` and `read_report` run in tasks of the lease; `close` after them."""

    def __init__(
        self, name: str, processes: Processes, agreed: AgreedLease, *, outgoing: Outgoing, log_path: Path
    ) -> None:
        """`outgoing` holds the descriptors of the weights. Raises OSError."""
        self.name = name
        self.agreed = agreed
        self.lease = agreed.lease
        self.processes = processes
        self.outgoing = outgoing
        self.log_path = log_path
        self.loaded_bytes = 0
        self.missed = 0
        self.neighbours: PushNeighbours | None = None  # a stock server has none
        self._why_failed = ""  # in its own words
        self.report: Report = processes.make_report()
        outgoing.add(self.report.child_end)
        self.child = processes.make_child(self.spec, name)

    # What differs from protocol to protocol.

    @abstractmethod
    def spec(self) -> ChildSpec:
        """How it is started. Raises OSError."""

    @abstractmethod
    async def serve_head(self, stream: Stream, on_broken: OnBroken) -> None:
        """Connect a stream of its head. Raises Refused, Broken."""

    @abstractmethod
    async def serve_neighbour(self, stream: Stream, on_broken: OnBroken) -> None:
        """Connect a stream of another worker, which its head has introduced. Raises Refused, Broken."""

    @property
    def is_at_work(self) -> bool:
        """It computes for its head now, as far as that is seen."""
        return False

    def why_still(self, _pid: int) -> str:
        """Why it is of no use any more although it runs; empty where nothing is known of that."""
        return ""

    def code_of_end(self) -> str:
        """Of Lost, for the end that `until_ended` has seen."""
        return RPC_SERVER_CRASHED if self.child.status.exit_signal in CRASHES else RPC_SERVER_ENDED

    def model_loaded(self) -> None:
        """The head has sent all of its weights, and has a first token."""
        if (lease_cache := self.agreed.lease_cache) is not None:
            lease_cache.done()

    def close(self) -> None:
        """The child has ended before."""
        if self.neighbours is not None:
            self.neighbours.close()
        self.report.close()

    # What all have.

    def admits(self, peer: PeerId) -> bool:
        """Whether another worker may push to it: the head has said so."""
        return self.neighbours is not None and self.neighbours.admits(peer)

    @property
    def push_tunnels(self) -> Sequence[TunnelStatus]:
        """To other workers, open now."""
        return self.neighbours.tunnels if self.neighbours is not None else ()

    def hand_over_weights(self) -> int:
        """A descriptor of the index, -1 without weights. Raises OSError."""
        weights = self.agreed.weights
        return -1 if weights is None else weights.hand_over(self.processes.hand_over, self.outgoing)

    async def until_ready(self, on_progress: Callable[[str], Awaitable[None]]) -> None:
        """Raises MeshdError when it cannot start."""
        while True:
            try:
                async with asyncio.timeout(PROGRESS_SECONDS):
                    return await self.child.ensure_ready()
            except TimeoutError:
                await on_progress(f"starting the {self.name}")

    async def until_ended(self) -> str:
        """Why it is of no use any more: it ended, or stands still; then it is killed."""
        status = self.child.status
        while status.is_up:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    status = await self.child.wait_changed(status)
            except TimeoutError:
                if status.pid is not None and (why := self._why_useless(status.pid)):
                    LOG.warning("rpc_server_killed", peer=self.lease.peer.short, pid=status.pid, why=why)
                    self.child.kill()
                    return why
        return f"{status.reason}: {self._why_failed}" if self._why_failed else status.reason

    def _why_useless(self, pid: int) -> str:
        if self.processes.is_stopped(pid):
            return "it is suspended (SIGSTOP), and does not answer"
        return self.why_still(pid)

    async def read_report(self, loaded: Callable[[int], None]) -> None:
        """Count what it says; `loaded` gets the bytes of weights that are in its memory now."""
        while True:
            try:
                line = await self.report.line()
            except (EndOfStream, Closed, Broken):
                return
            match line.split(" "):
                case ["loaded", _count, size] if (count := count_of(size)) is not None:
                    self.loaded_bytes += count
                    LOG.info("weights_loaded", peer=self.lease.peer.short, bytes=count)
                    loaded(self.loaded_bytes)
                case ["failed", *why]:
                    self.failed(" ".join(why))
                case ["miss", reason, *name]:
                    self.missed += 1
                    if self.missed <= SHOWN_MISSES:
                        LOG.warning("weight_missed", tensor=" ".join(name), why=reason)

    def failed(self, why: str) -> None:
        """It ends, and says so before."""
        self._why_failed = why
