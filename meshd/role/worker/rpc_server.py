"""The rpc-server of one lease: started for it, ready when it says so, ended with it."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.listening_socket import LOOPBACK_HOST
from meshd.identity.keys import PeerId
from meshd.peer.messages import MessageStream
from meshd.process.interface import ChildSpec
from meshd.role.head.load_report import count_of
from meshd.role.interface import Orders, Report, RoleRuntime
from meshd.role.native import command_lines
from meshd.role.native.fd_handover import Outgoing
from meshd.role.worker.known_files import Weights
from meshd.role.worker.leases import Lease
from meshd.role.worker.push_neighbours import PushNeighbours
from meshd.role.worker.stock_weights import OpenWeights
from meshd.rpc.firewall import Firewall
from meshd.rpc.hang_detector import LOOK_SECONDS, Watch
from meshd.rpc.missed_tensors import TensorKeeping
from meshd.rpc.protocol import SECRET_BYTES
from meshd.tunnel.interface import Target, TunnelStatus

READY_LINE = r"^  transport +:"  # the last of rpc-server's banner, flushed when it takes connections
PROGRESS_SECONDS = 2.0
SHOWN_MISSES = 12  # by name in the log: a worker without a file misses all; the head's status names them
CRASHES = ("SIGABRT", "SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE")  # none of these comes from somebody else
LOG = log.get("worker")


def has_crashed(why: str) -> bool:
    """Whether an rpc-server that ended so (process/lifecycle.py) did it by a fault of its own."""
    return any(f" was ended by {name} " in f"{why} " for name in CRASHES)


@dataclass(frozen=True, slots=True)
class AgreedLease:
    """A lease that is taken: its devices in the order of the offer, and the weights known at that moment.

    `on_cpu`: none of the devices is a GPU.
    """

    lease: Lease
    devices: tuple[str, ...]
    weights: Weights | None
    on_cpu: bool


class RpcServer:
    """`child` and `read_report` run in tasks of the lease; `close` after them."""

    def __init__(
        self,
        runtime: RoleRuntime,
        agreed: AgreedLease,
        *,
        messages: MessageStream,
        threads: int | None,
        outgoing: Outgoing,
        log_path: Path,
        sharers: Callable[[], int],
    ) -> None:
        """`outgoing` holds the descriptors of the weights, `messages` lead to the head; `sharers`: how many
        other leases compute on one of the devices now. Raises MeshdError."""
        lease, weights, tunnels = agreed.lease, agreed.weights, runtime.tunnels
        processes = self._processes = runtime.processes
        self._program = str(runtime.native.rpc_server)
        self._sockets = runtime.paths.sockets
        self._sharers = sharers
        self._devices = agreed.devices
        self._threads = threads
        self._weights = weights
        self._outgoing = outgoing
        self._log_path = log_path
        self._stock = not runtime.native.patched
        self._secret = b"" if self._stock else tunnels.random(SECRET_BYTES)
        self._peers_secret = b"" if self._stock else tunnels.random(SECRET_BYTES)
        self._orders: Orders | None = None
        self._target: Target = ("", 0)
        self.lease = lease
        self.watch = Watch(on_cpu=agreed.on_cpu)
        self.loaded_bytes = 0
        self.open_weights: OpenWeights | None = None  # for a stock server, which cannot read them itself
        self.missed = 0
        self.neighbours: PushNeighbours | None = None  # a stock server has none
        self._report: Report | None = None
        try:
            orders = self._open()
        except OSError as error:
            self.close()
            raise MeshdError(f"cannot start an rpc-server: {error.strerror}") from None
        if orders is not None:
            self.neighbours = PushNeighbours(runtime.mesh, tunnels, orders, messages, self.watch)
        if weights is not None and weights.lease_cache is not None:
            weights.lease_cache.allow(sum(lease.memory.values()))
        self.child = processes.make_child(self._spec, "rpc-server")

    def _open(self) -> Orders | None:
        """What the child is given. Returns the pipe for orders, None for a stock one. Raises OSError."""
        if self._stock and self._weights is not None:
            self.open_weights = self._weights.open()
        self._report = self._processes.make_report()
        self._outgoing.add(self._report.child_end)
        if not self._stock:
            self._orders = self._processes.make_orders()
            self._outgoing.add(self._orders.child_end)
        return self._orders

    @property
    def address(self) -> tuple[Target, bytes]:
        """Where it listens, and the secret that comes first on every connection."""
        return self._target, self._secret

    @property
    def peers_secret(self) -> bytes:
        """What comes first on a connection of another worker's server."""
        return self._peers_secret

    def admits(self, peer: PeerId) -> bool:
        """Whether another worker may push to it: the head has said so."""
        return self.neighbours is not None and self.neighbours.admits(peer)

    @property
    def push_tunnels(self) -> Sequence[TunnelStatus]:
        """To other workers, open now."""
        return self.neighbours.tunnels if self.neighbours is not None else ()

    def make_firewall(self) -> Firewall:
        """One for each connection."""
        lease_cache = self._weights.lease_cache if self._weights is not None else None
        return Firewall(
            memory=sum(self.lease.memory.values()) if self._stock else None,
            keeping=TensorKeeping(lease_cache) if lease_cache is not None else None,
        )

    def model_loaded(self) -> None:
        """The head has sent all of its weights, and has a first token."""
        self.watch.loaded = True
        if self._weights is not None and self._weights.lease_cache is not None:
            self._weights.lease_cache.done()

    def _spec(self) -> ChildSpec:
        self._remove_socket()  # of the start before
        return self._stock_spec() if self._stock else self._patched_spec()

    def _stock_spec(self) -> ChildSpec:
        port = self._processes.free_port()  # it binds it itself, a moment later; its banner stays in a buffer
        self._target = LOOPBACK_HOST, port
        return ChildSpec(
            name="rpc-server",
            argv=command_lines.stock_rpc_server(
                self._program, devices=self._devices, threads=self._threads, port=port
            ),
            log=self._log_path,
            probe=self._processes.port_open(port),
            env=command_lines.CALM_THREADS,
        )

    def _patched_spec(self) -> ChildSpec:
        processes = self._processes
        listen, self._target = processes.unix_listener()
        self._outgoing.add(listen)
        assert self._report is not None and self._orders is not None
        weights = -1
        if self._weights is not None:
            weights = self._weights.hand_over(processes.hand_over, self._outgoing)
        ready = processes.line_ready(READY_LINE)
        descriptors = command_lines.Descriptors(
            listen=listen,
            secret=self._outgoing.add(processes.hand_over(self._secret + self._peers_secret)),
            weights=weights,
            report=self._report.child_end,
            peers=self._orders.child_end,
        )
        return ChildSpec(
            name="rpc-server",
            argv=command_lines.rpc_server(
                self._program,
                devices=self._devices,
                threads=self._threads,
                memory=[self.lease.memory[name] for name in self._devices],
                descriptors=descriptors,
            ),
            log=self._log_path,
            env=command_lines.rpc_server_environment(str(self._sockets)),
            probe=ready,
            on_line=ready.see,
            hand_over=self._outgoing.give(),
        )

    async def until_ready(self, on_progress: Callable[[str], Awaitable[None]]) -> None:
        """Raises MeshdError when it cannot start."""
        while True:
            try:
                async with asyncio.timeout(PROGRESS_SECONDS):
                    return await self.child.ensure_ready()
            except TimeoutError:
                await on_progress("starting the rpc-server")

    async def until_ended(self) -> str:
        """Why it is of no use any more: it ended, or stands still; then it is killed."""
        status = self.child.status
        while status.is_up:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    status = await self.child.wait_changed(status)
            except TimeoutError:
                if status.pid is not None and (why := self._why_still(status.pid)):
                    LOG.warning("rpc_server_killed", peer=self.lease.peer.short, pid=status.pid, why=why)
                    self.child.kill()
                    return why
        return status.reason

    def _why_still(self, pid: int) -> str:
        if self._processes.is_stopped(pid):
            return "it is suspended (SIGSTOP), and does not answer"
        now = asyncio.get_running_loop().time()
        return self.watch.look(now, self._processes.usage(pid), sharers=self._sharers())

    async def read_report(self, loaded: Callable[[int], None]) -> None:
        """Count what it says; `loaded` gets the bytes of weights that are in its memory now."""
        assert self._report is not None
        while True:
            try:
                line = await self._report.line()
            except (EndOfStream, Closed, Broken):
                return
            match line.split(" "):
                case ["loaded", _count, size] if (count := count_of(size)) is not None:
                    self.loaded_bytes += count
                    LOG.info("weights_loaded", peer=self.lease.peer.short, bytes=count)
                    loaded(self.loaded_bytes)
                case ["failed", *why]:  # because of a neighbour, and its head's connection with it
                    LOG.warning("push_failed", peer=self.lease.peer.short, why=" ".join(why))
                case ["miss", reason, *name]:
                    self.missed += 1
                    if self.missed <= SHOWN_MISSES:
                        LOG.warning("weight_missed", tensor=" ".join(name), why=reason)

    def close(self) -> None:
        """The child has ended before."""
        if self.neighbours is not None:
            self.neighbours.close()
        for held in (self._report, self._orders, self.open_weights):
            if held is not None:
                held.close()
        self._remove_socket()

    def _remove_socket(self) -> None:
        if isinstance(self._target, Path):
            self._target.unlink(missing_ok=True)
            self._target = "", 0  # later its name may be another's
