"""A local socket as chunks: what it holds, when it stops reading, how it ends."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from meshd.base.errors import Broken, EndOfStream
from meshd.tunnel.local import HIGH_WATER, LOW_WATER, LocalSocket

from tests.conformance.run import ticks, until

CHUNK = 16 << 10


def unread(sock: socket.socket) -> int:
    """Return the bytes that wait in the kernel to be read from this socket."""
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


@asynccontextmanager
async def local_socket() -> AsyncIterator[tuple[LocalSocket, socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    _, local = await asyncio.get_running_loop().connect_accepted_socket(LocalSocket, ours)
    try:
        yield local, ours, theirs
    finally:
        theirs.close()
        local.abort()
        await local.wait_closed()


async def test_reading_stops_at_the_high_water_mark_and_goes_on_below_the_low_one() -> None:
    async with local_socket() as (local, ours, theirs):
        count, sent = 8 * HIGH_WATER, 0

        async def send() -> None:
            nonlocal sent
            while sent < count:
                try:
                    sent += theirs.send(bytes(min(CHUNK, count - sent)))
                except BlockingIOError:
                    await asyncio.sleep(0)

        def held() -> int:
            return sent - unread(ours)

        sending = asyncio.create_task(send())
        await until(lambda: held() >= HIGH_WATER and unread(ours) >= CHUNK)
        before = held()
        await ticks(20)
        assert held() == before < 2 * HIGH_WATER
        got = len(await local.read())
        while before - got > LOW_WATER:
            await ticks(5)
            assert held() == before
            got += len(await local.read())
        while got < count:
            got += len(await local.read())
        await sending


async def test_a_taker_may_take_part_and_gets_nothing_past_the_rest() -> None:
    async with local_socket() as (local, ours, theirs):
        taken: list[bytes] = []

        def take(data: bytes) -> int:
            taken.append(data[:3])
            return min(3, len(data))

        local.divert(take)
        theirs.send(b"abcdef")
        await until(lambda: not unread(ours))
        theirs.send(b"ghi")
        await until(lambda: not unread(ours))
        assert taken == [b"abc"]
        assert [await local.read(), await local.read()] == [b"def", b"ghi"]
        theirs.send(b"jkl")
        await until(lambda: len(taken) == 2)


async def test_writing_without_waiting_stops_at_the_high_water_mark() -> None:
    async with local_socket() as (local, _, theirs):
        count = 0
        while local.try_write(bytes(64 << 10)):
            count += 64 << 10
        assert count >= HIGH_WATER
        waiting = asyncio.create_task(local.write(b"last"))
        await asyncio.sleep(0)
        assert not waiting.done()
        loop = asyncio.get_running_loop()
        got = 0
        while got < count + 4:
            got += len(await loop.sock_recv(theirs, 1 << 20))
        await waiting
        assert local.try_write(b"again")


async def test_an_end_is_an_end_and_a_loss_a_break() -> None:
    async with local_socket() as (local, _, theirs):
        theirs.send(b"bye")
        theirs.shutdown(socket.SHUT_WR)
        assert await local.read() == b"bye"
        for _ in range(2):
            with pytest.raises(EndOfStream):
                await local.read()
        await local.write(b"answer")
        local.write_eof()
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(theirs, 100) == b"answer"
        assert await loop.sock_recv(theirs, 100) == b""
    with pytest.raises(Broken):
        await local.write(b"x")
    assert not local.try_write(b"x")
    local.write_eof()
    local.abort()


async def test_a_half_close_of_what_was_reset_a_moment_ago_is_a_break() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    _, local = await asyncio.get_running_loop().connect_accepted_socket(LocalSocket, ours)
    theirs.send(b"last words")
    await until(lambda: not unread(ours))
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    theirs.close()  # RST, of which the loop knows nothing yet
    local.write_eof()
    assert await local.read() == b"last words"
    with pytest.raises(Broken, match="local connection lost"):
        await local.read()
