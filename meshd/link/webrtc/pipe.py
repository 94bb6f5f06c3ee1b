"""A webrtc session as a byte pipe: bounded buffers and back-pressure both ways.

What waits where, at most: 64 KiB and one send in our backlog, what the path holds on its way (the window of
bbr.py), and 4 MiB received: unread, or behind a hole. Beyond that the SCTP window closes, and the
other side's sends wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from meshd.base.errors import Broken, Busy, Closed, EndOfStream, LocalProtocolError, MeshdError
from meshd.link.webrtc.session import Session
from meshd.wire.limits import MAX_FRAME_BYTES

SEND_HIGH_BYTES = 64 << 10
MAX_SEND_BYTES = 1 << 20  # one call of send
CLOSE_SECONDS = 0.8  # for the farewell to be acknowledged; the contract of a link is 1 s
_BREATH_BYTES = 1 << 20  # after so much sent without a pause other tasks get a turn


class WebRtcPipe:
    """A RawPipe (secure/handshake.py) over a connected session, which it ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._association = session.association
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._end: tuple[type[MeshdError], str] | None = None
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        self._receiving = self._sending = False
        self._since_breath = 0
        self._take: Callable[[bytes], bool] | None = None
        session.on_lost = lambda: self._break("the path to the other side is gone")
        self._association.unread = lambda: self._unread
        self._association.on_bytes = self._arrived
        self._association.on_drained = self._writable.set
        self._association.on_end = self._ended

    def widen(self) -> None:
        """The other side has proven who it is: 4 MiB may wait here instead of 64 KiB."""
        self._association.widen()

    # --- what the session calls

    def _arrived(self, data: bytes) -> None:
        if self._end is not None:
            return
        if self._take is None or self._chunks or not self._take(data):
            self._chunks.append(data)
            self._unread += len(data)
            self._readable.set()

    def _ended(self, clean: bool) -> None:
        if clean:
            self._finish(EndOfStream, "the other side ended the link")
        else:
            self._break("the other side dropped the connection")

    def _break(self, what: str) -> None:
        """There is nobody to say farewell to: the sockets go at once, what was received stays."""
        self._finish(Broken, what)
        self._session.shut()

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        self._end = self._end or (kind, what)
        self._readable.set()
        self._writable.set()

    # --- what the owner calls

    @property
    def unread_bytes(self) -> int:
        """Received and not fetched."""
        return self._unread

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in order, at most 1 MiB together; waits while over 64 KiB of backlog.

        All or nothing: a call that is cancelled has either sent all pieces or none.
        Raises Closed, Broken, Busy.
        """
        if self._sending:
            raise Busy("two tasks send on one link")
        self._sending = True
        try:
            await self._drained()
            self._put(data)
            if not self._has_room():
                self._since_breath = 0
                await self._drained()
            elif self._since_breath >= _BREATH_BYTES:
                self._since_breath = 0
                await asyncio.sleep(0)
        finally:
            self._sending = False

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """As `send`, without waiting; False when it would have to. Raises Closed, Broken."""
        if self._sending or not self._has_room() or self._since_breath >= _BREATH_BYTES:
            return False
        self._put(data)
        return True

    def _put(self, data: Sequence[bytes | memoryview]) -> None:
        size = sum(map(len, data))
        if size > MAX_SEND_BYTES:
            raise LocalProtocolError(f"{size} bytes in one send, at most {MAX_SEND_BYTES}")
        self._since_breath += size
        self._association.write(data)

    def _has_room(self) -> bool:
        if self._end is not None:
            kind, what = self._end
            raise (Closed if kind is Closed else Broken)(what)
        return self._association.backlog_bytes < SEND_HIGH_BYTES

    async def _drained(self) -> None:
        while not self._has_room():
            self._writable.clear()
            await self._writable.wait()

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """As `Link.divert`."""
        self._take = take

    async def receive(self) -> bytes:
        """The next chunk. Raises EndOfStream, Broken, Closed when there is nothing left; Busy."""
        if self._receiving:
            raise Busy("two tasks receive on one link")
        self._receiving = True
        try:
            while not self._chunks:
                if self._end is not None:
                    raise self._end[0](self._end[1])
                self._readable.clear()
                await self._readable.wait()
        finally:
            self._receiving = False
        data = self._fetch()
        self._unread -= len(data)
        self._association.was_read()
        return data

    def _fetch(self) -> bytes:
        """All that waits, up to the largest frame: many small chunks cost as much as one."""
        first = self._chunks.popleft()
        if not self._chunks:
            return first
        parts, size = [first], len(first)
        while self._chunks and size + len(self._chunks[0]) <= MAX_FRAME_BYTES:
            parts.append(self._chunks.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    async def aclose(self) -> None:
        """Say farewell, wait until it is acknowledged (at most 0.8 s), close the sockets."""
        ended = self._end
        if ended is None or ended[0] is EndOfStream:
            self._end = (Closed, "this link was closed")
            self._chunks.clear()
            self._unread = 0
            self._readable.set()
            self._writable.set()
        try:
            if ended is None:
                self._association.say_farewell()
                async with asyncio.timeout(CLOSE_SECONDS):
                    while self._association.is_open and not self._association.is_done:
                        self._writable.clear()
                        await self._writable.wait()
        except TimeoutError:
            pass  # nobody hears us
        finally:
            tasks = self._session.shut()
        if tasks:
            await asyncio.wait(tasks)

    def abort(self) -> None:
        """Drop it at once, without a farewell."""
        self._finish(Closed, "this link was closed")
        self._session.shut()
