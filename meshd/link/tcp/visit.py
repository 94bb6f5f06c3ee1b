"""A browser's connection to the mesh port: one request over plain HTTP, its answer, perhaps a WebSocket.

The browser has proven nothing yet, so the request is bounded in bytes, and sending the answer in time.
"""

import asyncio
from collections import deque
from collections.abc import Sequence

from meshd.base.errors import Broken, EndOfStream, RemoteProtocolError
from meshd.link.buffered_pipe import CLOSE_SECONDS, SEND_HIGH_BYTES
from meshd.wire.websocket import MAX_REQUEST_BYTES, FrameReader, accept, frame

HTTP = b"G"  # how GET begins; TLS begins with 0x16, STUN with a zero
_READ_BYTES = 64 << 10


class Visit:
    """A connection that began with HTTP (implements BytePipe once its WebSocket is open).

    Made within its event loop, from a transport that has received `first`.
    """

    def __init__(self, transport: asyncio.Transport, first: bytes, *, host: str, remote: str) -> None:
        self.host, self.remote = host, remote
        self._reader = asyncio.StreamReader(limit=MAX_REQUEST_BYTES)
        protocol = asyncio.StreamReaderProtocol(self._reader)
        protocol.connection_made(transport)
        transport.set_protocol(protocol)
        transport.set_write_buffer_limits(high=0)  # an answer has left once it is drained
        self._transport = transport
        self._writer = asyncio.StreamWriter(transport, protocol, self._reader, asyncio.get_running_loop())
        self._reader.feed_data(first)
        self._frames = FrameReader()
        self._payloads: deque[bytes] = deque()

    async def request(self) -> bytes:
        """Return the request up to its empty line. Raises RemoteProtocolError, EndOfStream."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise RemoteProtocolError("the request is too long", code="http") from None
        except (asyncio.IncompleteReadError, OSError):
            raise EndOfStream("the browser has gone") from None
        return head.removesuffix(b"\r\n\r\n")

    async def answer(self, *pieces: bytes) -> None:
        """Send the answer; waits until it has left. Raises Broken."""
        try:
            self._writer.writelines(pieces)
            await self._writer.drain()
        except OSError as error:
            raise Broken("the browser has gone") from error

    async def open(self, key: bytes) -> None:
        """Open the WebSocket that was asked for with `key`. Raises Broken."""
        await self.answer(accept(key))
        self._transport.set_write_buffer_limits(high=SEND_HIGH_BYTES)

    # --- BytePipe, of the WebSocket

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in one message; waits while much is unsent. Raises Broken."""
        if self._frames.is_over:  # after our closing frame come no others (RFC 6455, 5.5.1)
            raise Broken("the browser has gone")
        await self.answer(frame(data))

    async def receive(self) -> bytes:
        """Return the next bytes. Raises EndOfStream, Broken."""
        while not self._payloads:
            try:
                data = b"" if self._frames.is_over else await self._reader.read(_READ_BYTES)
            except OSError:
                data = b""
            if not data:
                raise EndOfStream("the browser has gone")
            payloads, reply = self._frames.feed(data)
            self._payloads.extend(payloads)
            if reply:
                await self.answer(reply)  # a browser that never reads is not read either
        return self._payloads.popleft()

    async def aclose(self) -> None:
        """Close it within 0.8 s; what it has not taken by then is dropped. Idempotent."""
        self._writer.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()
        except OSError:  # it has gone first; TimeoutError is one, too
            self._transport.abort()

    def abort(self) -> None:
        """Drop it at once."""
        self._transport.abort()
