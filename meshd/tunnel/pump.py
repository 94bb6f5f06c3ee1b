"""One bidirectional copy between a local connection and a mesh stream.

Half-close, reset and back-pressure pass through: what the local socket has not drained gives no credit
back to the peer, and what the peer has no credit for is not read from the local socket.
"""

from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.tasks import Owner, first_error
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.tunnel.interface import Inspector
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
    on_broken: Callable[[MeshdError], None] = lambda _error: None,
) -> None:
    """Copy both ways until both have ended, or one has broken: then both are reset."""
    if inspector is None:
        _short_cut(local, stream, counter)
    try:
        async with Owner() as owner:
            owner.start(_outward(local, stream, counter, inspector), name="pump out")
            owner.start(_inward(local, stream, counter, inspector), name="pump in")
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
        local.close()


def _short_cut(local: LocalSocket, stream: Stream, counter: Counter) -> None:
    """Hand chunks on as they arrive while neither side is full: no task has to wake for them.

    What cannot be taken at once goes the way of `_outward` and `_inward`, which wait; order is kept,
    because a side with anything queued takes nothing past the queue.
    """

    def out(data: bytes) -> int:
        taken = stream.try_write(data)
        counter.sent += taken
        return taken

    def inward(data: bytes | memoryview) -> bool:
        if not local.try_write(data):
            return False
        counter.received += len(data)
        stream.consumed(len(data))
        return True

    local.divert(out)
    stream.divert(inward)


async def _outward(local: LocalSocket, stream: Stream, counter: Counter, inspector: Inspector | None) -> None:
    while True:
        try:
            data: bytes | memoryview = await local.read()
        except EndOfStream:
            stream.write_eof()
            return
        if inspector is not None:
            data = inspector.to_peer(data)
        counter.sent += len(data)
        await stream.write(data)


async def _inward(local: LocalSocket, stream: Stream, counter: Counter, inspector: Inspector | None) -> None:
    while True:
        try:
            data = await stream.read()
        except EndOfStream:
            local.write_eof()
            return
        size = len(data)
        counter.received += size
        if inspector is not None:
            data = inspector.from_peer(data)
        await local.write(data)
        stream.consumed(size)
