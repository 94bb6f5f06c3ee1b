"""One bidirectional copy between a local connection and a mesh stream.

Half-close, reset and back-pressure pass through: what the local socket has not drained gives no credit
back to the peer, and what the peer has no credit for is not read from the local socket.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.tasks import Owner, first_error
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.tunnel.interface import Flow, Inspector, Passage
from meshd.tunnel.local import LocalSocket


@dataclass(slots=True)
class Counter:
    """Bytes that have passed, in both directions."""

    sent: int = 0
    received: int = 0


async def pump(
    local: LocalSocket,
    stream: Stream,
    *,
    counter: Counter,
    inspector: Inspector | None = None,
    flow: Flow | None = None,
    on_broken: Callable[[MeshdError], None] = lambda _error: None,
    passage: Passage | None = None,
) -> None:
    """Copy both ways until both have ended. When one breaks, or this is cancelled, both are reset."""
    nobody = Unwatched()
    copy = _Copy(local, stream, counter, inspector or nobody, flow or nobody, passage or nobody)
    # The short cut: chunks are copied as they arrive.
    local.divert(copy.out)
    stream.divert(copy.inward)
    # The tasks: they wait for a side that is full.
    try:
        async with Owner() as owner:
            owner.start(copy.keep_sending(), name="pump out")
            owner.start(copy.keep_receiving(), name="pump in")
    except ExceptionGroup as group:
        error = first_error(group)
        if not isinstance(error, Broken | Refused | RemoteProtocolError):
            raise
        stream.reset(Code.BROKEN, error.what[:200])
        local.abort()
        on_broken(error)
    except BaseException:
        stream.reset(Code.CANCELLED, "cancelled")
        local.abort()
        raise
    else:
        # Both ways have ended: let what was written go out.
        local.close()


class Unwatched:
    """An Inspector that lets everything pass, a Flow and a Passage that nobody asks."""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        return data

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        return data

    def pause(self, _now: float) -> float:
        return 0.0

    def target_waits(self, waits: bool) -> None:
        pass

    def peer_waits(self, waits: bool) -> None:
        pass

    def sent(self) -> None:
        pass

    def received(self) -> None:
        pass


class _Copy:
    """Both directions. `out` and `inward` are a short cut: they hand chunks on as they arrive while neither
    side is full, and no task has to wake for them.

    What cannot be taken at once goes by the tasks, which wait; order is kept, because a side with anything
    queued takes nothing past the queue. Each byte is inspected once; an inspector that has refused refuses
    again, so the task meets what the short cut met.
    """

    def __init__(
        self,
        local: LocalSocket,
        stream: Stream,
        counter: Counter,
        inspector: Inspector,
        flow: Flow,
        passage: Passage,
    ) -> None:
        self._local = local
        self._stream = stream
        self._counter = counter
        self._inspector = inspector
        self._flow = flow
        self._passage = passage
        self._now = asyncio.get_running_loop().time
        self._passed: bytes | memoryview | None = None  # of the chunk that is read next: inspected, not sent
        self._waits = False  # a chunk of the peer does, that its queue has given away

    def out(self, data: bytes) -> int:
        try:
            passed = self._inspector.to_peer(data)
        except RemoteProtocolError:
            return 0
        taken = self._stream.try_write(passed) if len(passed) else 0
        self._counter.sent += taken
        if taken == len(passed):
            if len(passed):
                self._passage.sent()
            return len(data)
        self._passed = memoryview(passed)[taken:]
        return 0

    def inward(self, data: bytes | memoryview) -> bool:
        if not self._local.writable or self._waits or self._inspector.pause(self._now()):
            return False
        try:
            passed = self._inspector.from_peer(data)
        except RemoteProtocolError:
            return False
        self._local.try_write(passed)
        self._counter.received += len(data)
        self._stream.consumed(len(data))
        if len(passed):
            self._passage.received()
        return True

    async def keep_sending(self) -> None:
        while True:
            try:
                data: bytes | memoryview = await self._local.read()
            except EndOfStream:
                self._stream.write_eof()
                return
            if self._passed is not None:
                data, self._passed = self._passed, None
            else:
                data = self._inspector.to_peer(data)
            self._counter.sent += len(data)
            self._flow.peer_waits(True)
            await self._stream.write(data)
            self._flow.peer_waits(False)

    async def keep_receiving(self) -> None:
        while True:
            try:
                data = await self._stream.read()
            except EndOfStream:
                self._local.write_eof()
                return
            size = len(data)
            self._counter.received += size
            while seconds := self._inspector.pause(self._now()):  # others may have gone first meanwhile
                self._waits = True  # until this task runs again, which may be after its time
                await asyncio.sleep(seconds)
            self._waits = False
            passed = self._inspector.from_peer(data)
            self._flow.target_waits(True)
            await self._local.write(passed)
            self._flow.target_waits(False)
            self._stream.consumed(size)
