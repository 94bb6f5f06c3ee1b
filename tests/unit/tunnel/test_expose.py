"""Streams to a local target: carried and counted, refused targets told, everything closed at the end."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from meshd.base.errors import Broken
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.tunnel.expose import connect_through
from meshd.tunnel.pump import Counter

from tests.conformance.run import run
from tests.unit.tunnel.far import read_all, streams

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def with_target(serve: Serve, use: Callable[[int], Awaitable[None]]) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        await use(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


def test_bytes_go_both_ways_and_are_counted() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(data[::-1])
        writer.close()
        await writer.wait_closed()

    async def use(port: int) -> None:
        near, far, _, _ = streams()
        counter = Counter()
        async with Owner() as owner:
            owner.start(connect_through(near, ("127.0.0.1", port), counter=counter), name="x")
            await far.write(b"hello")
            far.write_eof()
            assert await read_all(far) == b"olleh"
        assert (counter.sent, counter.received) == (5, 5)

    run(with_target(serve, use))


def test_a_target_that_refuses_is_told() -> None:
    with socket.socket() as taken:  # bound, not listening: nobody else can be there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        async def main() -> None:
            near, far, _, _ = streams()
            await connect_through(near, ("127.0.0.1", port), counter=Counter())
            with pytest.raises(Broken) as caught:
                await far.read()
            assert caught.value.what.endswith("cannot connect to the service: connection refused")

        run(main())


def test_a_target_that_dies_resets_the_stream() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        writer.transport.abort()

    async def use(port: int) -> None:
        near, far, _, _ = streams()
        async with Owner() as owner:
            owner.start(connect_through(near, ("127.0.0.1", port), counter=Counter()), name="x")
            await far.write(b"x")
            with pytest.raises(Broken, match="local connection lost"):
                await far.read()

    run(with_target(serve, use))


def test_cancelled_at_any_turn_nothing_is_left() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        except ConnectionError:
            pass
        writer.close()

    async def use(port: int) -> None:
        for turns in range(12):
            near, far, _, _ = streams()
            async with Owner() as owner:
                task = owner.start(connect_through(near, ("127.0.0.1", port), counter=Counter()), name="x")
                await far.write(bytes(1000))
                for _ in range(turns):
                    await asyncio.sleep(0)
                await cancel_and_wait(task)

    run(with_target(serve, use))
