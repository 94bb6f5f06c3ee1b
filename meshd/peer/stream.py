"""The asyncio face of one mux stream: reads and writes that wait for data and credit."""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from meshd.base.errors import Broken, Busy, Closed, EndOfStream, LocalProtocolError, MeshdError, Refused
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import MetadataValue


class MuxPort(Protocol):
    """What a stream needs of the session it belongs to."""

    def write(self, stream_id: int, data: bytes | memoryview) -> int: ...
    def write_eof(self, stream_id: int) -> None: ...
    def reset(self, stream_id: int, code: int, reason: str) -> None: ...
    def consumed(self, stream_id: int, count: int) -> bool: ...


class MeshStream:
    """Implements `Stream` over a session; the connection feeds it with what arrived."""

    def __init__(
        self,
        *,
        port: MuxPort,
        wake: Callable[[], None],
        pass_on: Callable[[int, bytes], bool],
        on_done: Callable[[int], None],
        stream_id: int,
        peer: PeerId,
        service: str,
        metadata: Mapping[str, MetadataValue],
    ) -> None:
        self._port = port
        self._wake = wake
        self._pass_on = pass_on
        self._on_done = on_done
        self._id = stream_id
        self._peer = peer
        self._service = service
        self._metadata = metadata
        self._chunks: deque[bytes] = deque()  # bounded by the stream's window (mux)
        self._take: Callable[[bytes | memoryview], bool] | None = None
        self._ended = False
        self._accepted = False
        self._eof_sent = False
        self._error: MeshdError | None = None
        self._reader = _Bell()
        self._writer = _Bell()
        self._taker = _Bell()

    @property
    def peer(self) -> PeerId:
        return self._peer

    @property
    def service(self) -> str:
        return self._service

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        return self._metadata

    async def accepted(self) -> None:
        """See Stream."""
        while not self._accepted:
            if self._error is not None:
                raise self._error.afresh()
            await self._taker.wait("wait for acceptance of")

    async def read(self) -> bytes | memoryview:
        """See Stream."""
        while not self._chunks:
            if self._error is not None:
                raise self._error.afresh()
            if self._ended:
                raise EndOfStream("the peer ended the stream")
            await self._reader.wait("read")
        return self._chunks.popleft()

    def divert(self, take: Callable[[bytes | memoryview], bool] | None) -> None:
        """See Stream."""
        self._take = take

    def try_write(self, data: bytes | memoryview) -> int:
        """See Stream."""
        if self._error is not None or self._eof_sent or self._writer.future is not None:
            return 0
        if type(data) is bytes and self._pass_on(self._id, data):
            return len(data)
        try:
            taken = self._port.write(self._id, data)
        except Closed:
            return 0  # the session is over; `write` says why
        if taken:
            self._wake()
        return taken

    def consumed(self, count: int) -> None:
        """See Stream."""
        if self._error is None:
            try:
                if self._port.consumed(self._id, count):
                    self._wake()
            except Closed as error:
                self.break_with(_broken(error))

    async def write(self, data: bytes | memoryview) -> None:
        """See Stream."""
        if self._eof_sent:
            raise LocalProtocolError("write after the end of the stream was sent")
        left = data
        while len(left):
            if self._error is not None:
                raise self._error.afresh()
            try:
                taken = self._port.write(self._id, left)
            except Closed as error:
                self.break_with(_broken(error))
                continue
            if taken:
                self._wake()
                if taken == len(left):
                    return
                left = memoryview(left)[taken:]
            else:
                await self._writer.wait("write")

    def write_eof(self) -> None:
        """See Stream."""
        if self._error is None and not self._eof_sent:
            self._eof_sent = True
            try:
                self._port.write_eof(self._id)
            except Closed as error:
                self.break_with(_broken(error))
            self._wake()
            if self._ended:
                self._on_done(self._id)

    def reset(self, code: int, reason: str) -> None:
        """See Stream."""
        if self._error is None and not (self._eof_sent and self._ended and not self._chunks):
            try:
                self._port.reset(self._id, code, reason)
            except Closed as error:
                self.break_with(_broken(error))
            self._wake()
            self._on_done(self._id)
        self.break_with(Broken(f"stream reset: {reason}"))

    # What the connection tells.

    def feed(self, data: bytes | memoryview) -> None:
        """Received, in order."""
        if self._take is not None and not self._chunks and self._take(data):
            return
        self._chunks.append(bytes(data))  # a view would keep more alive than it shows
        self._reader.ring()

    def feed_eof(self) -> None:
        """The peer's half-close."""
        self._ended = True
        self._reader.ring()
        if self._eof_sent:
            self._on_done(self._id)

    def feed_reset(self, code: int, reason: str) -> None:
        """The peer's reset, or its refusal."""
        if code in (Code.REFUSED, Code.UNKNOWN_SERVICE) and not self._accepted:
            self.break_with(Refused(reason, code="refused"))
        else:
            self.break_with(Broken(f"the peer reset the stream: {reason}"))

    def mark_accepted(self) -> None:
        """The other side took the stream."""
        self._accepted = True
        self._taker.ring()

    def wake_writer(self) -> None:
        """Credit has come."""
        self._writer.ring()

    def break_with(self, error: MeshdError) -> None:
        """Nothing more will come or go; the first error stays."""
        if self._error is None:
            self._error = error
            self._chunks.clear()
        for bell in (self._reader, self._writer, self._taker):
            bell.ring()


def _broken(error: Closed) -> Broken:
    """The session is over and has not broken its streams yet: to the user of one it is a loss, no fault."""
    return Broken(error.what)


class _Bell:
    """One task waits, anybody rings; a second waiter is a bug of the caller."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None  # while a task waits

    async def wait(self, what: str) -> None:
        if self.future is not None:
            raise Busy(f"two tasks {what} one stream")
        self.future = asyncio.get_running_loop().create_future()
        try:
            await self.future
        finally:
            self.future = None

    def ring(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)
