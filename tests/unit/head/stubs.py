"""Stand in for a child, a tunnel and a model file, without a process or a network."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from meshd.base.errors import MeshdError, UserError
from meshd.devices.interface import FromMembers, TunnelRequest
from meshd.model.gguf import Header
from meshd.model.weights_index import WeightsIndex
from meshd.process.interface import Child, ChildFailed, ChildSpec, ChildState, ChildStatus
from meshd.store.interface import HashProgress, LeaseCache, ProgressCallback, WeightsFile
from meshd.tunnel.interface import LISTEN_LOCAL, TunnelStatus
from meshd.wire.lease import Needs

from tests.gguf_bytes import gguf, language_model, parse

T = TypeVar("T")


class StubChild(Child):
    """Ready as soon as it is asked for, until `die`; owns what its spec hands over, as a real owner does."""

    def __init__(self, spec: Callable[[], ChildSpec], name: str) -> None:
        self._make = spec
        self._held: tuple[int, ...] = ()
        self._changed = asyncio.Event()
        self.spec: ChildSpec | None = None
        self.status_now = ChildStatus(name, ChildState.STOPPED, None, 0, "", ())
        self.refuses: MeshdError | None = None
        self.start_seconds = self.end_seconds = 0.0
        self._ready_at = 0.0  # once it was asked for: who asks again does not wait anew
        self.ended = False
        self.killed = False
        self._died = asyncio.Event()

    @property
    def status(self) -> ChildStatus:
        return self.status_now

    async def serve(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if self.end_seconds:
                await asyncio.sleep(self.end_seconds)
            self._end(ChildState.STOPPED, "stopped")
            self.ended = True

    async def ensure_ready(self) -> None:
        if not self._ready_at:
            self._ready_at = asyncio.get_running_loop().time() + self.start_seconds
            if self.start_seconds:
                self._set(ChildState.STARTING, "starting")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._died.wait(), self._ready_at - asyncio.get_running_loop().time())
        if self.killed:
            raise ChildFailed("it was ended by SIGKILL while it was starting")
        if self.refuses is not None:
            raise self.refuses
        try:
            self.spec = self._make()
        except OSError as error:
            raise UserError(f"cannot start: {error.strerror}") from None
        self._held = tuple(self.spec.hand_over)
        self._set(ChildState.READY, "")

    def kill(self) -> None:
        self.killed = True
        self._died.set()
        self._end(ChildState.FAILED, "ended by SIGKILL")

    async def wait_changed(self, seen: ChildStatus) -> ChildStatus:
        while self.status_now == seen:
            await self._changed.wait()
        return self.status_now

    def report(self, line: str) -> None:
        """Say a line on the report pipe, which is the last descriptor or the first."""
        assert self.spec is not None
        os.write(self.report_end, line.encode() + b"\n")

    @property
    def report_end(self) -> int:
        """The descriptor that its command line or environment names for reports."""
        assert self.spec is not None
        argv = list(self.spec.argv)
        if "--report-fd" in argv:
            return int(argv[argv.index("--report-fd") + 1])
        return int(self.spec.env["GGML_MESH_REPORT_FD"])

    def die(
        self, reason: str, *, code: int | None = None, signal: int | None = None, no_memory: str = ""
    ) -> None:
        """As a process that ends by itself."""
        ended = replace(self.status_now, exit_code=code, exit_signal=signal, no_memory=no_memory)
        self.status_now = ended
        self._end(ChildState.FAILED, reason)

    def _end(self, state: ChildState, reason: str) -> None:
        held, self._held = self._held, ()
        for descriptor in held:
            os.close(descriptor)
        self._set(state, reason)

    def _set(self, state: ChildState, reason: str) -> None:
        pid = 4711 if state in (ChildState.STARTING, ChildState.READY) else None
        self.status_now = replace(self.status_now, state=state, reason=reason, pid=pid)
        self._changed.set()
        self._changed = asyncio.Event()


class StubTunnel:
    """A tunnel that carries nothing."""

    def __init__(self, asked: TunnelRequest) -> None:
        self.asked = asked
        self.endpoint = asked.endpoint
        self.closed = False
        self.sent = 0
        self.is_direct = False

    @property
    def status(self) -> TunnelStatus:
        listen = LISTEN_LOCAL if self.is_direct else "socketpair"
        return TunnelStatus(self.asked.peer, "rpc", listen, 0, self.sent, 0)

    async def serve(self) -> None:
        await asyncio.Event().wait()

    def close(self) -> None:
        self.closed = True
        self.asked.end.close()


class FakeFile:
    """A tiny model whose index is known when `hashed` is set."""

    def __init__(self, *, layers: int = 4) -> None:
        self.name = "tiny.gguf"
        self.paths: tuple[Path, ...] = (Path("/models/tiny.gguf"),)
        self.headers: tuple[Header, ...] = (parse(gguf(*language_model(layers=layers))),)
        self.descriptors: tuple[int, ...] = ()
        self.missing_bytes = self.missing_shards = 0
        self.header_of = b""
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


async def at_once(work: Callable[[], T]) -> T:
    """In place of base.tasks.in_thread: no thread works for a virtual clock."""
    return work()


class StubMembers:
    """The files of members, of that `content`; who fetches gets `found`, once a test has set `gives`."""

    def __init__(self) -> None:
        self.content = b""
        self.found = FromMembers({})
        self.gives = asyncio.Event()
        self.gives.set()
        self.asked: list[Needs] = []
        self.fails: MeshdError | None = None
        self.read_seconds = 0.0
        self.by_us: list[bool] = []

    async def given_content(
        self, file: WeightsFile, on_progress: Callable[[str], None], *, by_us: bool
    ) -> bytes:
        self.by_us.append(by_us)
        if self.fails is not None:
            raise self.fails
        await asyncio.sleep(self.read_seconds)
        on_progress("reading it to compare it: 100 %")
        return self.content

    async def content_of(self, file: WeightsFile, on_progress: Callable[[str], None]) -> bytes:
        return await self.given_content(file, on_progress, by_us=True)

    async def fetch(self, needs: Needs, keep: LeaseCache, on_progress: Callable[[str], None]) -> FromMembers:
        self.asked.append(needs)
        on_progress("fetches 1 MB of 2 MB from one")
        await self.gives.wait()
        return self.found
