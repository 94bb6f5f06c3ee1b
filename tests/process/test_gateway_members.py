"""Members that call the API, and hold what it gives them: others are answered meanwhile."""

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator

from meshd.gateway.interface import GatewayConfig, MemberCaller

from tests.process.gateway_fake import World, raw_post, says, world
from tests.process.test_gateway_answers import COMPLETION


@contextlib.asynccontextmanager
async def member(here: World, name: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection of this one."""
    ours, theirs = socket.socketpair()
    await here.gateway.take(theirs, MemberCaller(hashlib.sha256(name.encode()).digest()))
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def test_bodies_that_do_not_end_keep_nobody_out() -> None:
    body = raw_post(1, {"messages": [], "pad": "x" * 900_000})
    config = GatewayConfig(port=0, max_body_bytes=1_000_000, max_bodies_bytes=4_000_000)

    async def scenario() -> None:
        async with world(says(200, COMPLETION), config=config) as here, contextlib.AsyncExitStack() as held:
            lines = []
            for _ in range(4):
                reader, writer = await held.enter_async_context(member(here, "one"))
                writer.write(body[:-1])
                lines.append(asyncio.ensure_future(reader.readline()))
            refused = asyncio.as_completed(lines)
            for _ in range(3):
                assert (await next(refused)).startswith(b"HTTP/1.1 503 "), "it has one, which is half of half"
            assert (await here.chat(pad="x" * 900_000)).status == 200
            reader, writer = await held.enter_async_context(member(here, "another"))
            writer.write(raw_post(1, {"messages": [], "pad": "x" * 400_000}))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
            for line in lines:
                line.cancel()

    asyncio.run(scenario())
