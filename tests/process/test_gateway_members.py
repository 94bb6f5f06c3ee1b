"""Members that call the API, and hold what it gives them: others are answered meanwhile."""

import asyncio
import contextlib
import hashlib
import select
import socket
from collections.abc import AsyncIterator

import pytest
from meshd.base.admission import Share
from meshd.gateway import client_connections
from meshd.gateway.interface import GatewayConfig, MemberCaller

from tests.process.gateway_fake import HI, World, chunk, pours, raw_post, says, when, world
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


async def test_bodies_that_do_not_end_keep_nobody_out() -> None:
    body = raw_post(1, {**HI, "pad": "x" * 900_000})
    config = GatewayConfig(port=0, max_body_bytes=1_000_000, max_bodies_bytes=4_000_000)

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
        writer.write(raw_post(1, {**HI, "pad": "x" * 400_000}))
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        for line in lines:
            line.cancel()


async def test_those_that_do_not_read_lose_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connections, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(client_connections, "API_STUCK_SECONDS", Share("", 20, "peer", ""))
    post = raw_post(1, {"prompt": "x", "stream": True}, path="/completion")

    endless = pours(chunk("x" * 2000), least=1 << 40)
    async with world(endless, config=GatewayConfig(port=0)) as here, contextlib.AsyncExitStack() as held:
        for _ in range(here.upstream.slots):
            ours, theirs = socket.socketpair()
            held.callback(ours.close)
            await here.gateway.take(theirs, MemberCaller(b"one"))
            ours.sendall(post)
        await here.server.until(lambda: here.server.active == here.upstream.slots)
        here.server.answer = says(200, COMPLETION)
        assert (await here.chat()).status == 200
        await here.server.until(lambda: here.server.active == 0)


def _is_closed(connection: socket.socket) -> bool:
    """Say whether the other end is closed, with bytes in between that nobody has read."""
    watch = select.poll()
    watch.register(connection, 0)  # a hang-up is reported in any case
    return bool(watch.poll(0))


async def test_a_whole_answer_that_nobody_takes_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_connections, "SWEEP_SECONDS", 0.01)
    monkeypatch.setattr(client_connections, "API_STUCK_SECONDS", Share("", 20, "peer", ""))
    post = raw_post(1, {"prompt": "x"}, path="/completion")

    async with world(says(200, {"content": "x" * (4 << 20)})) as here:
        ours, theirs = socket.socketpair()
        with ours:
            await here.gateway.take(theirs, MemberCaller(b"one"))
            ours.sendall(post)
            await when(here, lambda: _is_closed(ours))
