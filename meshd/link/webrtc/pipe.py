"""A webrtc session as a byte pipe: bounded buffers and back-pressure both ways.

What waits where, at most: 64 KiB and one send in our backlog, what the path holds on its way (the window of
bbr.py), and 4 MiB received: unread, or behind a hole. Beyond that the SCTP window closes, and the
other side's sends wait.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.link.buffered_pipe import SEND_HIGH_BYTES, BufferedPipe
from meshd.link.webrtc.session import WebRtcSession
from meshd.wire.limits import MAX_FRAME_BYTES


class WebRtcPipe(BufferedPipe):
    """A RawPipe (secure/handshake.py) over a connected session, which it ends."""

    def __init__(self, session: WebRtcSession) -> None:
        super().__init__()
        self._session = session
        self._association = session.association
        self._chunks: deque[bytes] = deque()
        self._settled = asyncio.Event()  # all is acknowledged, or the end
        self._tasks: list[asyncio.Task[None]] = []  # that end with the session
        session.on_lost = lambda: self._break("the path to the other side is lost")
        self._association.unread = lambda: self._unread
        self._association.on_bytes = self._arrived
        self._association.on_drained = self._drained
        self._association.on_end = self._ended

    def widen(self) -> None:
        """Open full buffers to a proven peer: 4 MiB may wait here instead of 64 KiB."""
        self._association.widen()

    # --- what the session calls

    def _arrived(self, data: bytes) -> None:
        if self._end is not None:
            return
        if self._take is None or self._chunks or not self._take(data):
            self._chunks.append(data)
            self._unread += len(data)
            self._readable.set()

    def _drained(self) -> None:
        self._writable.set()
        self._settled.set()

    def _ended(self, clean: bool) -> None:
        if clean:
            self._finish(EndOfStream, "the other side ended the link")
        else:
            self._break("the other side dropped the connection")

    def _break(self, what: str) -> None:
        """End at once, without a farewell that nobody would hear; what was received stays."""
        self._finish(Broken, what)
        self._shut()

    # --- what the owner calls

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """Send as `Link.try_send`. The association reports its low-water mark only: here is room above it
        too.
        """
        if self._association.backlog_bytes < SEND_HIGH_BYTES:
            self._writable.set()
        return super().try_send(data)

    def abort(self) -> None:
        """Drop it at once, without a farewell."""
        self._finish(Closed, "this link was closed")
        self._shut()

    # --- inside

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        self._association.write(data)
        if self._association.backlog_bytes >= SEND_HIGH_BYTES:
            self._writable.clear()

    def _fetch(self) -> bytes:
        """Return all that waits, up to the largest frame: many small chunks cost as much as one."""
        parts = [self._chunks.popleft()]
        size = len(parts[0])
        while self._chunks and size + len(self._chunks[0]) <= MAX_FRAME_BYTES:
            parts.append(self._chunks.popleft())
            size += len(parts[-1])
        self._unread -= size
        self._association.was_read()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _say_goodbye(self, *, ended: bool) -> None:
        """Say farewell, and wait until it is acknowledged."""
        self._chunks.clear()
        if not ended:
            self._association.say_farewell()
            while self._association.is_open and not self._association.is_done:
                self._settled.clear()
                await self._settled.wait()

    async def _wait_gone(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        super()._finish(kind, what)
        self._settled.set()

    def _shut(self) -> None:
        self._tasks += self._session.shut()
