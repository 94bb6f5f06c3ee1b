"""Roles between fakes: nodes joined by streams in memory, children that only look like processes."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError, UserError
from meshd.base.tasks import Owner
from meshd.daemon.role_runtime import make_processes
from meshd.gateway.interface import ReadyReport
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Member, Role
from meshd.model.gguf import Header
from meshd.model.weights_index import WeightsIndex
from meshd.mux.events import Code
from meshd.peer.interface import Allow, Handler, MetadataValue, PeerState, PeerStatus, Stream
from meshd.peer.stream import MeshStream
from meshd.process.handover import ReportPipe, pipe_with
from meshd.process.interface import Child, ChildSpec, ChildState, ChildStatus, Ended
from meshd.process.ports import listening_socket
from meshd.role.interface import NativeBuild, RolePaths, RoleRuntime, Tunnel, TunnelRequest, Tunnels
from meshd.store.interface import HashProgress, ProgressCallback
from meshd.tunnel.interface import Flow, Inspector, LocalWeights, Target, TunnelStatus
from meshd.wire.native import NativeVersion

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.identity.cast import MESH, WORKER_CHAIN
from tests.unit.tunnel.far import streams

NATIVE = NativeVersion("7.0.0", "pin", "patches", "cpu")


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


COMPRESSED_VERSION = 7  # of compressed streams, as a worker of these tests takes them


class StubChild(Child):
    """Ready as soon as it is asked for, until `die`; owns what its spec hands over, as a real owner does."""

    def __init__(self, spec: Callable[[], ChildSpec], name: str) -> None:
        self._make = spec
        self._held: tuple[int, ...] = ()
        self._changed = asyncio.Event()
        self.spec: ChildSpec | None = None
        self.status_now = ChildStatus(name, ChildState.STOPPED, None, 0, "", ())
        self.refuses: MeshdError | None = None
        self.start_seconds = 0.0
        self._ready_at = 0.0  # once it was asked for: who asks again does not wait anew
        self.ended = False
        self.killed = False
        self.told = b""

    @property
    def status(self) -> ChildStatus:
        return self.status_now

    async def serve(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._end(ChildState.STOPPED, "stopped")
            self.ended = True

    async def ensure_ready(self) -> None:
        if not self._ready_at:
            self._ready_at = asyncio.get_running_loop().time() + self.start_seconds
        await asyncio.sleep(self._ready_at - asyncio.get_running_loop().time())
        if self.refuses is not None:
            raise self.refuses
        try:
            self.spec = self._make()
        except OSError as error:
            raise UserError(f"cannot start: {error.strerror}") from None
        self._held = tuple(self.spec.hand_over)
        self._set(ChildState.READY, "")

    async def stop(self) -> None:
        self._end(ChildState.STOPPED, "stopped")

    def kill(self) -> None:
        self.killed = True
        self._end(ChildState.FAILED, "ended by SIGKILL")

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        while self.status_now == seen:
            await self._changed.wait()
        return self.status_now

    def report(self, line: str) -> None:
        """Say a line on the report pipe, which is the last descriptor or the first."""
        assert self.spec is not None
        os.write(self.report_end, line.encode() + b"\n")

    def orders(self) -> list[str]:
        """What an rpc-server was told so far, over the descriptor that its command line names."""
        assert self.spec is not None
        argv = list(self.spec.argv)
        end = int(argv[argv.index("--peers-fd") + 1])
        os.set_blocking(end, False)
        try:
            self.told += os.read(end, 1 << 16)
        except BlockingIOError:
            pass  # nothing new
        return self.told.decode().splitlines()

    @property
    def report_end(self) -> int:
        """The descriptor that its command line or environment names for reports."""
        assert self.spec is not None
        argv = list(self.spec.argv)
        if "--report-fd" in argv:
            return int(argv[argv.index("--report-fd") + 1])
        return int(self.spec.env["GGML_RPC_REPORT_FD"])

    def die(self, reason: str) -> None:
        """As a process that ends by itself."""
        self._end(ChildState.FAILED, reason)

    def _end(self, state: ChildState, reason: str) -> None:
        held, self._held = self._held, ()
        for descriptor in held:
            os.close(descriptor)
        self._set(state, reason)

    def _set(self, state: ChildState, reason: str) -> None:
        pid = 4711 if state is ChildState.READY else None
        self.status_now = replace(self.status_now, state=state, reason=reason, pid=pid)
        self._changed.set()
        self._changed = asyncio.Event()


class StubTunnel:
    """A tunnel that carries nothing."""

    made = 0

    def __init__(self, asked: TunnelRequest) -> None:
        StubTunnel.made += 1
        self.asked = asked
        self.endpoint = f"127.0.0.1:{10_000 + StubTunnel.made % 50_000}"
        self.closed = False
        self.sent = 0

    @property
    def status(self) -> TunnelStatus:
        return TunnelStatus(self.asked.peer, "rpc", self.endpoint, 0, self.sent, 0)

    async def serve(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True


class FakeMesh:
    """One node's view; `net` finds the others. Streams are handed to the other's handler at once."""

    def __init__(self, net: "Net", key: KeyPair, name: str, role: str, roles: frozenset[Role]) -> None:
        self.net, self.key, self.name, self.role = net, key, name, role
        self.member_here = Member(peer=key.peer, mesh=MESH, roles=roles, chain=WORKER_CHAIN)
        self.services: dict[str, tuple[Handler, Allow]] = {}
        self.state = PeerState.CONNECTED
        self.since = 0.0
        self.native = NATIVE
        self.says_banned = self.stopped = ""
        self.native = NATIVE
        self.version = 0
        self._changed = asyncio.Event()
        self.streams: list[Stream] = []  # near ends of those that this node opened

    def peers(self) -> Sequence[PeerStatus]:
        return [
            PeerStatus(
                peer=other.key.peer,
                name=other.name,
                role=other.role,
                state=other.state,
                paths=(),
                native=other.native,
                software="",
                resumes=0,
                since=other.since,
                last_error="",
                clock_offset=None,
                says_banned=other.says_banned,
                stopped=other.stopped,
            )
            for other in self.net.meshes.values()
            if other is not self
        ]

    def member(self, peer: PeerId) -> Member | None:
        return self.net.meshes[peer].member_here

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        other = self.net.meshes.get(peer)
        if other is None or other.state is not PeerState.CONNECTED:
            raise Broken("not connected")
        near, far, _, _ = streams(one_way=self.net.one_way)
        far._peer, far._service, far._metadata = self.key.peer, service, metadata
        self.streams.append(near)
        if self.net.one_way:
            self.net.owner.start(self._later(other, service, near, far), name=f"{service} to {other.name}")
        else:
            self._opened(other, service, near, far)
        return near

    async def _later(self, other: "FakeMesh", service: str, near: MeshStream, far: MeshStream) -> None:
        await asyncio.sleep(self.net.one_way)
        self._opened(other, service, near, far)

    def _opened(self, other: "FakeMesh", service: str, near: MeshStream, far: MeshStream) -> None:
        handler, allow = other.services[service]
        why = allow(self.member_here, far.metadata)
        if isinstance(why, str):
            near._accepted = False
            near.feed_reset(Code.REFUSED, why)
            return
        task = self.net.owner.start(self._handle(handler, far), name=f"{service} at {other.name}")
        if (release := why) is not None:
            task.add_done_callback(lambda _: release())

    async def _handle(self, handler: Handler, stream: Stream) -> None:
        try:
            await handler(stream)
        except (Broken, EndOfStream):
            stream.reset(Code.BROKEN, "broken")
        except MeshdError as error:
            stream.reset(Code.REFUSED, error.what)

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        self.services[service] = (handler, allow)

    async def changed(self, seen: int) -> int:
        while self.version == seen:
            await self._changed.wait()
        return self.version

    def say(self, state: PeerState) -> None:
        """This node is seen so from now on; the others are told."""
        self.state = state
        for mesh in self.net.meshes.values():
            mesh.version += 1
            mesh._changed.set()
            mesh._changed = asyncio.Event()


class Net:
    """All nodes of one test, `one_way` seconds apart."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.one_way = 0.0
        self.meshes: dict[PeerId, FakeMesh] = {}

    def mesh(self, name: str, role: str = "worker", *, roles: frozenset[Role] = frozenset(Role)) -> FakeMesh:
        key = KeyPair.from_seed(name.encode().ljust(32, b"."))
        made = FakeMesh(self, key, name, role, roles)
        self.meshes[key.peer] = made
        return made


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
        self.listings = 0
        self.listing_seconds = 0.0
        self.trials: list[tuple[str, tuple[str, ...]]] = []  # device, operations
        self.trial_lines: Sequence[str] | None = None  # None: everything is right
        self.trial_ended: Ended | None = Ended(0, None, ())  # None: never
        self.trial_seconds = 0.0
        self.stopped: set[int] = set()
        self.spent: tuple[float, int] | None = (0.0, 0)  # of any process
        self.report_fails = False
        self.hand_over_fails_at: int | None = None
        self.ready: asyncio.Future[ReadyReport] | None = None
        self.tokens_asked = 0
        self._drawn = 0
        self._handed = 0
        self.runtime = RoleRuntime(
            mesh=mesh,
            native=NativeBuild(Path("rpc-server"), Path("llama-server"), patched, version),
            processes=replace(
                make_processes(folder),
                make_child=self._make_child,
                run_to_end=self._run_to_end,
                first_token=self._first_token,
                hand_over=self._hand_over,
                make_report=self._make_report,
                unix_listener=self._listening,
                is_stopped=self.stopped.__contains__,
                usage=lambda _pid: self.spent,
            ),
            tunnels=Tunnels(
                open=self._open_tunnel,
                connect_through=self._connect,
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


class FakeFile:
    """A tiny model whose index is known when `hashed` is set."""

    def __init__(self, *, layers: int = 4) -> None:
        self.name = "tiny.gguf"
        self.paths = (Path("/models/tiny.gguf"),)
        self.headers: tuple[Header, ...] = (parse(gguf(*language_model(layers=layers))),)
        self.descriptors: tuple[int, ...] = ()
        self.missing_bytes = self.missing_shards = 0
        self.hashed = asyncio.Event()
        self.hashed.set()
        self.progress: ProgressCallback | None = None
        self.unchanged = True
        self.replaced = False
        self.follows = 0

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        self.progress = progress
        if progress is not None and not self.hashed.is_set():
            progress(HashProgress(self.name, 1, 4, 0.0))
        await self.hashed.wait()
        return WeightsIndex((), (), "f" * 64)

    def stat_unchanged(self) -> bool:
        return self.unchanged

    def paths_unchanged(self) -> bool:
        return not self.replaced

    async def follow(self) -> bool:
        self.follows += 1
        replaced, self.replaced = self.replaced, False
        return replaced

    def close(self) -> None:
        """Nothing is open."""
