"""Connections to llama-server's unix socket.

One for each request (`Connection: close`). A full accept queue is waited for: asyncio would take such
a connection for made, its first write would fail, and a busy llama-server would look like a dead one.
"""

import asyncio
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

_READ_BYTES = 64 << 10  # aiohttp stops reading from llama-server at twice this
QUEUE_FULL_SECONDS = 0.01  # until the next try; the kernel does not tell when there is room


async def connect(path: Path, *, pause: float = QUEUE_FULL_SECONDS) -> socket.socket:
    """A connected, non-blocking unix socket. Waits while the accept queue is full. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        while True:
            try:
                connection.connect(str(path))
            except BlockingIOError:
                # Linux says EAGAIN, and polling the socket does not help (unix(7), connect(2))
                await asyncio.sleep(pause)
            else:
                return connection
    except BaseException:
        connection.close()
        raise


class _PatientConnector(aiohttp.UnixConnector):
    """aiohttp's connector for unix sockets with `connect` above."""

    async def _create_connection(
        self, req: "ClientRequest", traces: "list[Trace]", timeout: aiohttp.ClientTimeout
    ) -> ResponseHandler:
        loop = asyncio.get_running_loop()
        try:
            connection = await connect(Path(self.path))
            try:
                _, protocol = await loop.create_unix_connection(
                    lambda: ResponseHandler(loop), sock=connection
                )
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error
        return protocol


def open_session(path: Path) -> aiohttp.ClientSession:
    """A client session for the llama-server at `path`, without timeouts; close it when done."""
    return aiohttp.ClientSession(
        connector=_PatientConnector(str(path), limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=None, sock_read=None),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        read_bufsize=_READ_BYTES,
    )
