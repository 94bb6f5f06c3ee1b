"""The WebSocket by which a browser in this network comes to the node: bytes, which the browser has sealed.

Any page may open it, one of a saved file as well: what a page elsewhere could do with it, whoever reaches the
port can do, and without an invite that is nothing. So neither a session nor an origin is asked for.
"""

from collections.abc import Sequence

from aiohttp import WSMsgType, web

from meshd.base.errors import Broken, EndOfStream
from meshd.link.interface import LetIn, WelcomeBrowser

SIGNAL_PATH = "/mesh/signal"
_MAX_MESSAGE_BYTES = 64 << 10


class BrowserSocket:
    """A WebSocket as a pipe of bytes: a message's boundaries mean nothing."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces; waits while much is unsent. Raises Broken."""
        try:
            await self._socket.send_bytes(b"".join(data))
        except (ConnectionError, RuntimeError) as error:  # the browser has gone; it has said so
            raise Broken("the browser has gone") from error

    async def receive(self) -> bytes:
        """Return the next bytes. Raises EndOfStream."""
        while True:
            message = await self._socket.receive()
            if message.type is not WSMsgType.BINARY:
                raise EndOfStream("the browser has gone")
            if message.data:
                return bytes(message.data)

    async def aclose(self) -> None:
        """Close it within 1 s. Idempotent."""
        await self._socket.close()


async def welcome_browser(
    request: web.BaseRequest, welcome: WelcomeBrowser, let_in: LetIn
) -> web.StreamResponse:
    """Answer a request for SIGNAL_PATH, until the browser has gone."""
    socket = web.WebSocketResponse(
        timeout=0.8, max_msg_size=_MAX_MESSAGE_BYTES, compress=False, autoping=True
    )
    await socket.prepare(request)
    await welcome(BrowserSocket(socket), request.remote or "a member", let_in)
    return socket
