"""Who never comes to the answer itself is given up: a head may be another node."""

import asyncio
import socket

import pytest
from meshd.base.peer_limits import INTERIM_ANSWERS
from meshd.gateway.upstream import UpstreamLost, open_session, read_some, send_call

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def asked(interim: bytes, count: int, *, at_once: int) -> bytes:
    """What is made of an answer that comes after so many that are none."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=theirs)

    async def connect() -> socket.socket:
        return ours

    async def say() -> None:
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(count // at_once):
            writer.write(interim * at_once)
            await writer.drain()
        writer.write(ANSWER)

    saying = asyncio.get_running_loop().create_task(say())
    try:
        async with asyncio.timeout(10), open_session(connect) as session:
            answer = await send_call(session, "POST", "/completion", b"{}", {})
            return await read_some(answer)
    finally:
        saying.cancel()
        await asyncio.gather(saying, return_exceptions=True)
        writer.transport.abort()


@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize("status", [b"100 Continue", b"102 Processing", b"103 Early Hints", b"199 x"])
def test_interim_answers_without_end_are_a_loss(status: bytes, at_once: int) -> None:
    with pytest.raises(UpstreamLost):
        asyncio.run(asked(b"HTTP/1.1 " + status + b"\r\n\r\n", 100_000, at_once=at_once))


@pytest.mark.parametrize("count", [0, 1, INTERIM_ANSWERS.most])
def test_a_few_are_read_over(count: int) -> None:
    assert asyncio.run(asked(b"HTTP/1.1 100 Continue\r\n\r\n", count, at_once=1)) == b"{}"
