"""The runtime of a role between fakes (fake_mesh.py, stubs.py), and a note of all that it made."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from socket import socket

from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.daemon.role_runtime import make_processes
from meshd.gateway.interface import ReadyReport
from meshd.peer.interface import Stream
from meshd.process.handover import ReportPipe, pipe_with, socket_pair
from meshd.process.interface import Child, ChildSpec, Ended
from meshd.process.ports import listening_socket
from meshd.role.interface import (
    MeshPrograms,
    NativeBuild,
    RolePaths,
    RoleRuntime,
    Tunnel,
    TunnelRequest,
    Tunnels,
)
from meshd.tunnel.interface import Flow, Inspector, LocalWeights, Target
from meshd.tunnel.joined import join
from meshd.wire.native import NativeVersion

from tests.unit.role.fake_mesh import NATIVE, FakeMesh
from tests.unit.role.stubs import StubChild, StubTunnel


def cpu_lines(*, free_mib: int, name: str = "CPU") -> tuple[str, ...]:
    """What a patched and a stock rpc-server list, one after the other: each is read by its own reader."""
    total = 4096
    return (
        f"device {name} cpu - {total << 20} {free_mib << 20} some processor",
        "Available devices:",
        f"  {name}: some processor ({total} MiB, {free_mib} MiB free)",
    )


DEVICE_LINES = cpu_lines(free_mib=3000)
GPU_LINE = f"device GPU0 gpu 0000:01:00.0 {4096 << 20} {3000 << 20} some card"


SPEAKS_MESH = "mesh 2"
COMPRESSED_VERSION = 7  # of compressed streams, as a worker of these tests takes them


def _native(mesh: FakeMesh, version: NativeVersion, *, patched: bool, mesh_programs: bool) -> NativeBuild:
    programs = Path("rpc-server"), Path("llama-server")
    if not mesh_programs:
        return NativeBuild(*programs, patched, version)
    mesh.native = replace(version, rpc=SPEAKS_MESH, patches="stock")
    ours = MeshPrograms(Path("mesh-server"), Path("libggml-mesh.so"), "7.0.0")
    return NativeBuild(*programs, False, mesh.native, ours)


class Bench:
    """What one node's role works with, and everything that was made with it.

    What can be real is as the daemon makes it; processes, tunnels and chance are of this class.
    """

    def __init__(
        self,
        mesh: FakeMesh,
        folder: Path,
        *,
        patched: bool = True,
        mesh_programs: bool = False,
        version: NativeVersion = NATIVE,
        compressed: int = COMPRESSED_VERSION,
        always_compressed: bool = False,
    ) -> None:
        self.mesh = mesh
        self.children: list[StubChild] = []
        self.tunnels: list[StubTunnel] = []
        self.connected: list[tuple[Target, bytes]] = []
        self.weights: LocalWeights | None = None  # that a tunnel was given
        self.inspectors: list[Inspector] = []
        self.head_says = b""  # over the connection to an rpc-server
        self.head_stays = False  # on it, for ever
        self.device_lines: Sequence[str] = DEVICE_LINES
        self.child_refuses: MeshdError | None = None
        self.start_seconds = 0.0
        self.listings = self.tokens_asked = 0
        self.listing_seconds = 0.0
        self.trials: list[tuple[str, tuple[str, ...]]] = []  # device, operations
        self.trial_lines: Sequence[str] | None = None  # None: everything is right
        self.trial_ended: Ended | None = Ended(0, None, ())  # None: never
        self.trial_seconds = 0.0
        self.stopped: set[int] = set()
        self.spent: tuple[float, int] | None = (0.0, 0)  # of any process
        self.report_fails = False
        self.pairs_left = 1000
        self.hand_over_fails_at: int | None = None
        self.ready: asyncio.Future[ReadyReport] | None = None
        self._drawn = self._handed = 0
        self.runtime = RoleRuntime(
            mesh=mesh,
            native=_native(mesh, version, patched=patched, mesh_programs=mesh_programs),
            processes=replace(
                make_processes(folder),
                make_child=self._make_child,
                run_to_end=self._run_to_end,
                first_token=self._first_token,
                hand_over=self._hand_over,
                make_report=self._make_report,
                socket_pair=self._socket_pair,
                unix_listener=self._listening,
                is_stopped=self.stopped.__contains__,
                usage=lambda _pid: self.spent,
            ),
            tunnels=Tunnels(
                open=self._open_tunnel,
                connect_through=self._connect,
                join=join,
                random=self._random,
                compressed=compressed,
                always_compressed=always_compressed,
            ),
            paths=RolePaths(logs=folder, sockets=folder),
        )

    def forget(self) -> None:
        """Drop what was made with it, which a long run has no use for."""
        for made in (self.children, self.tunnels, self.connected, self.inspectors, self.trials):
            made.clear()

    def _make_child(self, spec: Callable[[], ChildSpec], name: str) -> Child:
        child = StubChild(spec, name)
        child.refuses = self.child_refuses
        child.start_seconds = self.start_seconds
        self.children.append(child)
        return child

    async def _run_to_end(self, spec: ChildSpec) -> Ended:
        assert spec.on_line is not None
        if "--try-device" in spec.argv:
            return await self._try(spec)
        self.listings += 1
        await asyncio.sleep(self.listing_seconds)
        for line in self.device_lines:
            spec.on_line(line)
        return Ended(1, None, tuple(self.device_lines))

    async def _try(self, spec: ChildSpec) -> Ended:
        assert spec.on_line is not None
        argv = list(spec.argv)
        words = tuple(argv[argv.index("--try") + 1].split(","))
        self.trials.append((argv[argv.index("--try-device") + 1], words))
        lines = self.trial_lines
        if lines is None:
            lines = [f"{kind} {word}" for word in words for kind in ("trying", "right")]
            lines.append(f"tried {len(words)}")
        for line in lines:
            spec.on_line(line)
        await asyncio.sleep(self.trial_seconds)
        if self.trial_ended is None:
            await asyncio.Event().wait()
        assert self.trial_ended is not None
        return self.trial_ended

    def _open_tunnel(self, asked: TunnelRequest) -> Tunnel:
        tunnel = StubTunnel(asked)
        self.tunnels.append(tunnel)
        return tunnel

    async def _connect(
        self,
        stream: Stream,
        target: Target,
        *,
        secret: bytes,
        inspector: Inspector,
        flow: Flow | None,
        weights: LocalWeights | None,
        on_broken: Callable[[MeshdError], None],
    ) -> None:
        self.connected.append((target, secret))
        self.weights = weights
        self.inspectors.append(inspector)
        try:
            inspector.from_peer(self.head_says)
        except RemoteProtocolError as error:
            on_broken(error)
        if self.head_stays:
            await asyncio.Event().wait()
        stream.write_eof()

    def _hand_over(self, data: bytes) -> int:
        if self._handed == self.hand_over_fails_at:
            raise OSError(24, "Too many open files")
        self._handed += 1
        return pipe_with(data)

    def _make_report(self) -> ReportPipe:
        if self.report_fails:
            raise OSError(24, "Too many open files")
        return ReportPipe()

    def _socket_pair(self) -> tuple[socket, int]:
        if not self.pairs_left:
            raise OSError(24, "Too many open files")
        self.pairs_left -= 1
        return socket_pair()

    async def _first_token(self, _socket: Path) -> ReadyReport:
        self.tokens_asked += 1
        if self.ready is None:
            return ReadyReport(True, "", 0.1)
        return await self.ready

    def _listening(self) -> tuple[int, Path]:
        sock = listening_socket()  # in place of a unix socket: a test's folder may be too deep for one
        path = self.runtime.paths.sockets / f"rpc-{sock.getsockname()[1]}"
        path.touch()
        return sock.detach(), path

    def _random(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")
