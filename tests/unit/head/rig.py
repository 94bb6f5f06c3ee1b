"""The runtime of a role between fakes (fake_mesh.py, stubs.py), and a note of all that it made."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from socket import socket

from meshd.base.errors import MeshdError
from meshd.base.processes import ProcessWork
from meshd.daemon.role_runtime import make_processes
from meshd.devices.interface import (
    NativeBuild,
    PlainConnections,
    RolePaths,
    RoleRuntime,
    Tunnel,
    TunnelRequest,
    Tunnels,
)
from meshd.gateway.interface import AnswerTimings, ReadyReport
from meshd.head.lease import MeshEnd, WeightsReport
from meshd.head.measures import AwayTimes
from meshd.process.handover import ReportPipe, pipe_with, socket_pair
from meshd.process.interface import Child, ChildSpec, Ended
from meshd.tunnel.joined import join
from meshd.wire.versions import NativeVersion

from tests.unit.head.fake_mesh import NATIVE, FakeMesh
from tests.unit.head.stubs import StubChild, StubMembers, StubTunnel


def cpu_lines(*, free_mib: int, name: str = "CPU") -> tuple[str, ...]:
    """Return what a mesh-server lists."""
    return (f"device {name} cpu - {4096 << 20} {free_mib << 20} some processor",)


DEVICE_LINES = cpu_lines(free_mib=3000)
GPU_LINE = f"device GPU0 gpu 0000:01:00.0 {4096 << 20} {3000 << 20} some card"


COMPRESSED_VERSION = 7  # of compressed streams, as a worker of these tests takes them


class Bench:
    """The parts that one node's role works with, and everything that was made with it.

    What can be real is as the daemon makes it; processes, tunnels and chance are of this class.
    """

    hand_over_fails_at: int | None = None
    drafted: AnswerTimings | None = None
    """With a draft model; None: llama-server does not tell."""

    child_refuses: MeshdError | None = None
    work: Callable[[], ProcessWork | None] | None = None  # of any process
    loop_is_free = True  # of its llama-server

    def __init__(
        self,
        mesh: FakeMesh,
        folder: Path,
        *,
        version: NativeVersion = NATIVE,
        compressed: int = COMPRESSED_VERSION,
        always_compressed: bool = False,
    ) -> None:
        self.mesh = mesh
        self.children, self.tunnels = list[StubChild](), list[StubTunnel]()
        self.device_lines: Sequence[str] = DEVICE_LINES
        self.start_seconds = self.listing_seconds = self.trial_seconds = self.timing_seconds = 0.0
        self.listings = self.tokens_asked = self.rounds_timed = self.timings_ended = 0
        self.drafts_timed: list[int] = []
        self.trials: list[tuple[str, tuple[str, ...]]] = []  # device, operations
        self.trial_lines: Sequence[str] | None = None  # None: everything is right
        self.trial_ended: Ended | None = Ended(0, None, ())  # None: never
        self.timings: list[tuple[str, ...]] = []  # the arguments of each
        self.timing_lines: Sequence[str] | None = None  # None: 1 ms a token, for each kind
        self.timing_runs: list[Sequence[str]] = []  # of the next runs, before those above
        self.timing_ended: Ended | None = Ended(0, None, ())  # None: never
        self.stopped: set[int] = set()
        self.report_fails, self.pairs_left, self._drawn, self._handed = False, 1000, 0, 0
        self.ready: asyncio.Future[ReadyReport] | None = None
        self.members = StubMembers()
        self.runtime = RoleRuntime(
            mesh=mesh,
            native=NativeBuild(
                llama_server=Path("llama-server"),
                mesh_server=Path("mesh-server"),
                module=Path("libggml-mesh.so"),
                version=version,
                plain_rpc="7.0.0",
            ),
            processes=replace(
                make_processes(),
                make_child=self._make_child,
                run_to_end=self._run_to_end,
                loop_answers=lambda _: self._loop_answers,
                first_token=self._first_token,
                round_seconds=self._round_seconds,
                drafted_rounds=self._drafted_rounds,
                hand_over=self._hand_over,
                make_report=self._make_report,
                socket_pair=self._socket_pair,
                is_stopped=self.stopped.__contains__,
                work_of=self._work_of,
            ),
            tunnels=Tunnels(
                open=self._open_tunnel,
                join=join,
                random=self._random,
                compressed=compressed,
                always_compressed=always_compressed,
                local=not always_compressed,
            ),
            paths=RolePaths(logs=folder, sockets=folder),
            from_members=self.members,
        )

    def _work_of(self, _pid: int) -> ProcessWork | None:
        return self.work() if self.work is not None else None

    def connect_plainly(self, plain: PlainConnections, *, seals: bool) -> None:
        """Give the runtime plain connections with other nodes; `seals`: its mesh-server can."""
        self.runtime = replace(
            self.runtime,
            native=replace(self.runtime.native, seals=seals),
            tunnels=replace(self.runtime.tunnels, plain=plain),
        )

    def mesh_end(self) -> MeshEnd:
        """Return the mesh end of a head whose model has no weights."""
        report, away = WeightsReport({}), AwayTimes(lambda: 0.0)
        return MeshEnd(self.runtime.processes.socket_pair, weights={}, report=report, away=away)

    def forget(self) -> None:
        """Drop what was made with it, which a long run has no use for."""
        for made in (self.children, self.tunnels, self.trials, self.timings):
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
        if "--time-device" in spec.argv:
            return await self._time(spec)
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

    async def _time(self, spec: ChildSpec) -> Ended:
        assert spec.on_line is not None
        self.timings.append(tuple(spec.argv))
        lines = self.timing_runs.pop(0) if self.timing_runs else self.timing_lines
        if lines is None:
            kinds = range(spec.argv.count("--time"))
            lines = [f"took {kind} {tokens} {1_000_000 * tokens}" for kind in kinds for tokens in (1, 128)]
        for line in lines:
            spec.on_line(line)
        try:
            await asyncio.sleep(self.timing_seconds)
        finally:
            self.timings_ended += 1
        if self.timing_ended is None:
            await asyncio.Event().wait()
        assert self.timing_ended is not None
        return self.timing_ended

    def _open_tunnel(self, asked: TunnelRequest) -> Tunnel:
        tunnel = StubTunnel(asked)
        self.tunnels.append(tunnel)
        return tunnel

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

    async def _loop_answers(self) -> bool:
        await asyncio.sleep(0.0 if self.loop_is_free else 2.0)
        return self.loop_is_free

    async def _first_token(self, _socket: Path, _sampling: object) -> ReadyReport:
        self.tokens_asked += 1
        if self.ready is None:
            return ReadyReport(True, "", 0.1)
        return await self.ready

    async def _round_seconds(self, _socket: Path, _sampling: object) -> float | None:
        self.rounds_timed += 1
        return 0.1

    async def _drafted_rounds(self, _socket: Path, _sampling: object, length: int) -> AnswerTimings | None:
        self.drafts_timed.append(length)
        return self.drafted

    def _random(self, count: int) -> bytes:
        self._drawn += 1
        return self._drawn.to_bytes(count, "big")
