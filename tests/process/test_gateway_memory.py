"""A client that does not read slows llama-server down instead of filling the gateway's memory."""

import asyncio
import hashlib
import socket
from typing import Any

import aiohttp
from aiohttp import web

from tests.process.gateway_fake import FakeServer, begin_stream, chunk, world

STREAM_BYTES = 48 << 20
HELD_UP_SECONDS = 1.0  # without a byte taken; waited for once
# kernel buffers of both sockets (4 MiB and less) and about 0.5 MiB of the gateway's own
MOST_HELD = 12 << 20


def small_window(address: tuple[Any, ...]) -> socket.socket:
    """A client socket whose kernel takes little: newer kernels would buffer 32 MiB."""
    made = socket.socket(address[0], address[1], address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    return made


async def held_up(server: FakeServer) -> int:
    """Wait until the server can write no more; gives how much it had written by then."""
    while True:
        before = server.written
        try:
            async with asyncio.timeout(HELD_UP_SECONDS):
                await server.until_written(before + 1)
        except TimeoutError:
            return server.written


def test_a_client_that_does_not_read_holds_the_upstream_up() -> None:
    """What the fake could write lies in some buffer: the gateway holds no more than that."""
    piece = chunk("x" * 8000)
    sent = hashlib.sha256()

    async def pour(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        while server.written < STREAM_BYTES:
            await response.write(piece)
            sent.update(piece)
            async with server.changed:
                server.written += len(piece)
                server.changed.notify_all()
        return response

    async def scenario() -> None:
        async with world(pour) as here:
            connector = aiohttp.TCPConnector(socket_factory=small_window)
            async with aiohttp.ClientSession(connector=connector) as http:
                async with http.post(f"{here.url}/completion", json={"stream": True}) as reply:
                    assert await held_up(here.server) < MOST_HELD
                    received = hashlib.sha256()
                    async for data in reply.content.iter_any():
                        received.update(data)
            assert here.server.written >= STREAM_BYTES
            assert received.digest() == sent.digest()

    asyncio.run(scenario())
