"""The WebSocket by which a browser in this network comes to the node: bytes, which the browser has sealed.

Any page may open it, also one from a saved file: it can do no more than anybody who reaches the port, which
is nothing without an invite. So neither a session nor an origin is asked for.
"""

from collections.abc import Sequence

from aiohttp import WSMsgType, web

from meshd.base.errors import Broken, EndOfStream

_MAX_MESSAGE_BYTES = 64 << 10


class BrowserSocket:
    """A WebSocket as a pipe of bytes: a message's boundaries mean nothing."""

    def __init__(self) -> None:
        self.response = web.WebSocketResponse(
            timeout=0.8, max_msg_size=_MAX_MESSAGE_BYTES, compress=False, autoping=True
        )

    async def open(self, request: web.BaseRequest) -> None:
        """Accept the WebSocket of a request."""
        await self.response.prepare(request)

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces; waits while much is unsent. Raises Broken."""
        try:
            await self.response.send_bytes(b"".join(data))
        except (ConnectionError, RuntimeError) as error:  # the browser has gone; it has said so
            raise Broken("the browser has gone") from error

    async def receive(self) -> bytes:
        """Return the next bytes. Raises EndOfStream."""
        while True:
            message = await self.response.receive()
            if message.type is not WSMsgType.BINARY:
                raise EndOfStream("the browser has gone")
            if message.data:
                return bytes(message.data)

    async def aclose(self) -> None:
        """Close it within 1 s. Idempotent."""
        await self.response.close()
