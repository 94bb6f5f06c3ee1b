"""A client that does not read slows llama-server down instead of filling the gateway's memory."""

import asyncio
import hashlib

import aiohttp

from tests.process.gateway_fake import chunk, pours, small_window, world

STREAM_BYTES = 48 << 20
# kernel buffers of both sockets (4 MiB and less) and about 0.5 MiB of the gateway's own
MOST_HELD = 12 << 20


def test_a_client_that_does_not_read_holds_the_upstream_up() -> None:
    """What the fake could write lies in some buffer: the gateway holds no more than that."""
    piece = chunk("x" * 8000)

    async def scenario() -> None:
        async with world(pours(piece, least=STREAM_BYTES)) as here:
            connector = aiohttp.TCPConnector(socket_factory=small_window)
            async with aiohttp.ClientSession(connector=connector) as http:
                async with http.post(f"{here.url}/completion", json={"stream": True}) as reply:
                    assert await here.server.held_up() < MOST_HELD
                    received = hashlib.sha256()
                    async for data in reply.content.iter_any():
                        received.update(data)
            assert here.server.written >= STREAM_BYTES
            sent = hashlib.sha256(piece * (here.server.written // len(piece)))
            assert received.digest() == sent.digest()

    asyncio.run(scenario())
