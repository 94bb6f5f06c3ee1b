"""The rpc-server of one lease: started for it, ready when it says so, ended with it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from meshd.base import log
from meshd.base.listening_socket import LOOPBACK_HOST
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.process.interface import ChildSpec
from meshd.role.interface import Orders, RoleRuntime
from meshd.role.native import command_lines
from meshd.role.native.fd_handover import Outgoing
from meshd.role.worker.lent_server import AgreedLease, LentServer, OnBroken
from meshd.role.worker.push_neighbours import RpcNeighbours
from meshd.role.worker.stock_weights import OpenWeights
from meshd.rpc.firewall import Firewall
from meshd.rpc.hang_detector import Watch
from meshd.rpc.missed_tensors import TensorKeeping
from meshd.rpc.protocol import SECRET_BYTES
from meshd.rpc.push_firewall import PushFilter
from meshd.tunnel.interface import Target

READY_LINE = r"^  transport +:"  # the last of rpc-server's banner, flushed when it takes connections
LOG = log.get("worker")


class RpcServer(LentServer):
    """Upstream's program with meshd's patches, or as it is."""

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
        """`messages` lead to the head; `sharers`: how many other leases compute on one of the devices now.

        Raises MeshdError, OSError.
        """
        super().__init__("rpc-server", runtime.processes, agreed, outgoing=outgoing, log_path=log_path)
        tunnels = runtime.tunnels
        self._program = str(runtime.native.rpc_server)
        self._connect_through = tunnels.connect_through
        self._sockets = runtime.paths.sockets
        self._sharers = sharers
        self._threads = threads
        self._stock = not runtime.native.patched
        self._secret = b"" if self._stock else tunnels.random(SECRET_BYTES)
        self._peers_secret = b"" if self._stock else tunnels.random(SECRET_BYTES)
        self._orders: Orders | None = None
        self._target: Target = ("", 0)
        self.watch = Watch(on_cpu=agreed.on_cpu)
        self.open_weights: OpenWeights | None = None  # for a stock server, which cannot read them itself
        try:
            orders = self._open()
        except OSError:
            self.close()
            raise
        if orders is not None:
            self.neighbours = RpcNeighbours(runtime.mesh, tunnels, messages, orders, self.watch)
        if (lease_cache := agreed.lease_cache) is not None:
            lease_cache.allow(sum(agreed.memory))

    def _open(self) -> Orders | None:
        if not self._stock:
            self._orders = self.processes.make_orders()
            self.outgoing.add(self._orders.child_end)
        elif self.agreed.weights is not None:
            self.open_weights = self.agreed.weights.open()
        return self._orders

    @property
    def address(self) -> tuple[Target, bytes]:
        """Where it listens, and the secret that comes first on every connection of its head."""
        return self._target, self._secret

    @property
    def is_at_work(self) -> bool:
        """See LentServer."""
        return self.watch.is_at_work

    def model_loaded(self) -> None:
        """See LentServer."""
        self.watch.loaded = True
        super().model_loaded()

    # Its streams.

    async def serve_head(self, stream: Stream, on_broken: OnBroken) -> None:
        """See LentServer."""
        target, secret = self.address
        owed = self.watch.connection(self._make_firewall())
        try:
            await self._connect_through(
                stream,
                target,
                secret=secret,
                inspector=owed,
                flow=owed,
                weights=self.open_weights,
                on_broken=on_broken,
            )
        finally:
            self.watch.close(owed)

    async def serve_neighbour(self, stream: Stream, on_broken: OnBroken) -> None:
        """See LentServer."""
        await self._connect_through(
            stream,
            self._target,
            secret=self._peers_secret,
            inspector=PushFilter(self.watch.arrived),
            flow=None,
            weights=None,
            on_broken=on_broken,
        )

    def _make_firewall(self) -> Firewall:
        """One for each connection."""
        lease_cache = self.agreed.lease_cache
        return Firewall(
            memory=sum(self.agreed.memory) if self._stock else None,
            keeping=TensorKeeping(lease_cache) if lease_cache is not None else None,
        )

    # Its process.

    def spec(self) -> ChildSpec:
        """See LentServer."""
        self._remove_socket()  # of the start before
        return self._stock_spec() if self._stock else self._patched_spec()

    def _stock_spec(self) -> ChildSpec:
        port = self.processes.free_port()  # it binds it itself, a moment later; its banner stays in a buffer
        self._target = LOOPBACK_HOST, port
        return ChildSpec(
            name=self.name,
            argv=command_lines.stock_rpc_server(
                self._program, devices=self.agreed.devices, threads=self._threads, port=port
            ),
            log=self.log_path,
            probe=self.processes.port_open(port),
            env=command_lines.CALM_THREADS,
        )

    def _patched_spec(self) -> ChildSpec:
        processes = self.processes
        listen, self._target = processes.unix_listener()
        self.outgoing.add(listen)
        assert self._orders is not None
        weights = self.hand_over_weights()
        ready = processes.line_ready(READY_LINE)
        descriptors = command_lines.Descriptors(
            listen=listen,
            secret=self.outgoing.add(processes.hand_over(self._secret + self._peers_secret)),
            weights=weights,
            report=self.report.child_end,
            peers=self._orders.child_end,
        )
        return ChildSpec(
            name=self.name,
            argv=command_lines.rpc_server(
                self._program,
                devices=self.agreed.devices,
                threads=self._threads,
                memory=self.agreed.memory,
                descriptors=descriptors,
            ),
            log=self.log_path,
            env=command_lines.rpc_server_environment(str(self._sockets)),
            probe=ready,
            on_line=ready.see,
            hand_over=self.outgoing.give(),
        )

    def why_still(self, pid: int) -> str:
        """See LentServer."""
        now = asyncio.get_running_loop().time()
        return self.watch.look(now, self.processes.usage(pid), sharers=self._sharers())

    def failed(self, why: str) -> None:
        """Because of a neighbour: its head's connection with it ends, and it goes on."""
        LOG.warning("push_failed", peer=self.lease.peer.short, why=why)

    def close(self) -> None:
        """See LentServer."""
        super().close()
        for held in (self._orders, self.open_weights):
            if held is not None:
                held.close()
        self._remove_socket()

    def _remove_socket(self) -> None:
        if isinstance(self._target, Path):
            self._target.unlink(missing_ok=True)
            self._target = "", 0  # later its name may be another's
