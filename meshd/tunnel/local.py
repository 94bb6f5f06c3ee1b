"""A local connection, TCP or a unix socket, as chunks with back-pressure in both directions.

`asyncio.StreamReader` would copy every byte twice more; here a chunk is what the transport received, and
reading stops while the last one has not been taken.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from meshd.base.errors import Broken, EndOfStream
from meshd.base.sockets import widen

LOW_WATER = 64 << 10  # resume reading, resume writing
HIGH_WATER = 256 << 10  # stop reading, wait before writing more


class LocalSocket(asyncio.Protocol):
    """One connection: one task reads, one writes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._paused = False
        self._eof = False
        self._lost: Exception | None = None
        self._closed = False
        self._readable: asyncio.Future[None] | None = None
        self._writable: asyncio.Future[None] | None = None
        self.writable = False  # whether `try_write` would write
        self._take: Callable[[bytes], int] | None = None

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.writable = True
        self._transport.set_write_buffer_limits(high=HIGH_WATER, low=LOW_WATER)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        elif sock is not None:
            with contextlib.suppress(OSError):  # it has gone again: `read` tells
                widen(sock)

    def data_received(self, data: bytes) -> None:
        if self._take is not None and not self._chunks:
            taken = self._take(data)
            if taken == len(data):
                return
            data = data[taken:]
        self._chunks.append(data)
        self._held += len(data)
        if self._held >= HIGH_WATER and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        _ring(self._readable)

    def eof_received(self) -> bool:
        self._eof = True
        _ring(self._readable)
        return True  # half-closed: we may go on writing

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self.writable = False
        self._lost = exc
        _ring(self._readable)
        _ring(self._writable)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = not self._closed
        _ring(self._writable)

    # Called by the pump.

    @property
    def peername(self) -> tuple[str, int]:
        """The host and port of the other end; empty and 0 of a unix socket."""
        assert self._transport is not None
        name = self._transport.get_extra_info("peername")
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)

    @property
    def sockname(self) -> tuple[str, int]:
        """The host and port of this end; empty and 0 of a unix socket."""
        assert self._transport is not None
        name = self._transport.get_extra_info("sockname")
        return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)

    @property
    def remote(self) -> str:
        """The other end as `host:port`."""
        host, port = self.peername
        return f"{host}:{port}" if port else "a unix socket"

    async def read(self) -> bytes:
        """Return the next chunk. Raises EndOfStream at the peer's half-close, Broken."""
        while not self._chunks:
            if self._eof:
                raise EndOfStream("local end of file")
            if self._closed:
                raise Broken(f"local connection lost: {self._lost or 'closed'}")
            self._readable = asyncio.get_running_loop().create_future()
            await self._readable
        data = self._chunks.popleft()
        self._held -= len(data)
        if self._paused and self._held <= LOW_WATER and self._transport is not None and not self._closed:
            self._paused = False
            self._transport.resume_reading()
        return data

    def divert(self, take: Callable[[bytes], int] | None) -> None:
        """Offer what arrives to `take` first, which says how many bytes it took; `read` gets the rest."""
        self._take = take

    def try_write(self, data: bytes | memoryview) -> bool:
        """Write without waiting; False, and nothing written, above the high-water mark or when it broke."""
        if self._transport is None or not self.writable:
            return False
        self._transport.write(data)
        return True

    async def write(self, data: bytes | memoryview) -> None:
        """Write, and wait until the kernel has taken all but HIGH_WATER of it. Raises Broken."""
        if self._closed or self._transport is None:
            raise Broken(f"local connection lost: {self._lost or 'closed'}")
        self._transport.write(data)
        while not self.writable:
            if self._closed:
                raise Broken(f"local connection lost: {self._lost or 'closed'}")
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable

    def write_eof(self) -> None:
        """Close our half."""
        if not self._closed and self._transport is not None:
            with contextlib.suppress(OSError):  # it was reset, and the loop has not looked: `read` tells
                self._transport.write_eof()

    def abort(self) -> None:
        """Reset the connection (RST), so that the other end sees no clean end; a unix socket has no reset,
        and ends.
        """
        if self._transport is None or self._closed:
            return
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        self._transport.abort()

    def close(self) -> None:
        """Close after what was written has gone."""
        if self._transport is not None:
            self._transport.close()

    async def wait_closed(self) -> None:
        """Wait until the transport has gone."""
        while not self._closed:
            self._writable = asyncio.get_running_loop().create_future()
            await self._writable


def _ring(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
