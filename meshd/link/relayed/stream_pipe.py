"""TLS 1.3 over a stream of a session, as a byte pipe: what a link through a member runs on.

What waits where, at most: 64 KiB plus one send on the way out and 64 KiB plus one chunk on the way in; beyond
that `send` waits, or the stream is left alone and its credit slows the other side.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from ssl import SSLContext
from typing import Protocol

from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.buffered_pipe import BufferedPipe
from meshd.link.secure.tls import TlsEngine

_HIGH_BYTES = 64 << 10  # in each direction, in our own buffers
_SPACE_BYTES = 64 << 10
_ENDED = 1  # code of a reset


class Bytes(Protocol):
    """A stream of a session (peer/interface.py), as far as it is needed here."""

    @property
    def peer(self) -> PeerId: ...
    @property
    def metadata(self) -> Mapping[str, str | int | bytes]: ...
    async def read(self) -> bytes | memoryview: ...
    def consumed(self, count: int) -> None: ...
    async def write(self, data: bytes | memoryview) -> None: ...
    def write_eof(self) -> None: ...
    def reset(self, code: int, reason: str) -> None: ...


class StreamPipe(BufferedPipe):
    """A RawPipe (secure/handshake.py). Works only while `run` runs."""

    def __init__(self, stream: Bytes, context: SSLContext, *, server_side: bool) -> None:
        super().__init__()
        self._stream = stream
        self._engine = TlsEngine(context, server_side=server_side)
        self._space = memoryview(bytearray(_SPACE_BYTES))
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._chunks: deque[bytes] = deque()
        self._closing = False
        self._why_unsecured: MeshdError | None = None  # as the stream or TLS said it
        self._wake = asyncio.Event()  # something to send
        self._taken = asyncio.Event()  # less than the high-water mark is unread
        self._taken.set()
        self._settled = asyncio.Event()

    # Life.

    async def run(self) -> None:
        """Move the bytes until both directions have ended."""
        try:
            async with Owner() as owner:
                owner.start(self._write_out(), name="pipe out")
                owner.start(self._read_in(), name="pipe in")
        finally:
            self._finish(Broken, "the path through the member is lost")
            self._settled.set()

    async def secure(self) -> None:
        """Begin the handshake and wait for its end. Raises Refused, too."""
        self._shake()
        await super().secure()

    def binding(self) -> bytes:
        """Return the SHA-256 of the listener's certificate; for the dialler, after `secure`."""
        return self._engine.binding()

    async def aclose(self) -> None:
        """Close the pipe as Link.aclose: what was sent before still goes out."""
        if not self._closing:
            await super().aclose()

    def abort(self) -> None:
        """Drop it at once, without a goodbye."""
        self._closing = True
        self._finish(Closed, "this link was closed")
        self._stream.reset(_ENDED, "the link was closed")
        self._wake.set()
        self._taken.set()

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """Do nothing: every chunk of this kind goes through `receive`."""

    # Inside.

    async def _say_goodbye(self, *, ended: bool) -> None:
        self._closing = True
        self._chunks.clear()
        self._engine.finish()
        self._send_out(self._engine.outgoing())
        await self._settled.wait()

    async def _write_out(self) -> None:
        try:
            while True:
                while self._out:
                    data = self._out.popleft()
                    await self._stream.write(data)
                    self._out_bytes -= len(data)
                    if self._out_bytes < _HIGH_BYTES:
                        self._writable.set()
                if self._closing:
                    self._stream.write_eof()
                    return
                self._wake.clear()
                await self._wake.wait()
        except MeshdError as error:
            self._lost(error)

    async def _read_in(self) -> None:
        try:
            while True:
                await self._taken.wait()
                data = await self._stream.read()
                if self._closing:
                    self._stream.consumed(len(data))
                    continue  # only the end is waited for
                self._engine.feed(data)
                if not self._secured:
                    self._shake()
                if self._secured:
                    self._pull()
                self._stream.consumed(len(data))
        except EndOfStream:
            self._finish(Broken, "the path through the member ended without a goodbye")
        except MeshdError as error:
            self._lost(error)

    def _shake(self) -> None:
        if self._secured:
            return
        try:
            self._secured = self._engine.advance()
        finally:
            self._send_out(self._engine.outgoing())
        self._readable.set()

    def _pull(self) -> None:
        try:
            while count := self._engine.unseal(self._space):
                self._chunks.append(bytes(self._space[:count]))
                self._unread += count
        except EndOfStream:
            self._finish(EndOfStream, "the other side ended the link")
        self._send_out(self._engine.outgoing())
        if self._unread >= _HIGH_BYTES and not self._closing:
            self._taken.clear()
        self._readable.set()

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        self._send_out(self._engine.seal(data))

    def _fetch(self) -> bytes:
        chunk = self._chunks.popleft()
        self._unread -= len(chunk)
        if self._unread < _HIGH_BYTES:
            self._taken.set()
        return chunk

    def _send_out(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self._out_bytes += len(data)
            if self._out_bytes >= _HIGH_BYTES and self._end is None:
                self._writable.clear()
        self._wake.set()

    def _lost(self, error: MeshdError) -> None:
        """End the pipe: the stream, or TLS on it, is broken."""
        if self._secured:
            self._finish(Broken, error.what)
        elif self._end is None:
            self._why_unsecured = error.afresh()
            self._finish(type(error), error.what)
        self._stream.reset(_ENDED, "the link is broken")
        self._closing = True
        self._wake.set()

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        super()._finish(kind, what)
        self._taken.set()

    def _check(self) -> None:
        if self._why_unsecured is not None:
            raise self._why_unsecured.afresh()
        super()._check()
