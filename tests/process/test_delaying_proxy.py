"""The delaying proxy with real sockets: bytes and their ends come through; how late is not asserted here."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from meshd.base.tasks import Owner
from meshd.fleet.proxy import Counts, DelayingProxy, ProxyRules, connect_to, listening_socket, run_loop

from tests.conformance.run import until

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SECONDS = 20.0
HOST = "127.0.0.1"
HELLO = bytes([14]) + bytes(8)  # a request of RPC, without a body
ANSWER = bytes(8)
HELD = 1 << 20
KERNEL = 32 << 20  # most that the buffers of two sockets take
RESET = struct.pack("ii", 1, 0)


@asynccontextmanager
async def proxied(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], rules: ProxyRules
) -> AsyncIterator[tuple[Peer, Counts]]:
    """A client's end of a connection through the proxy to `serve`."""
    async with asyncio.timeout(SECONDS):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        listener = listening_socket()
        place = listener.getsockname()
        proxy = DelayingProxy(
            listener, partial(connect_to, *server.sockets[0].getsockname()[:2]), rules=rules
        )
        async with server, Owner() as owner:
            owner.start(proxy.serve(), name="proxy")
            reader, writer = await asyncio.open_connection(*place[:2])
            try:
                yield (reader, writer), proxy.counts
            finally:
                writer.close()
                owner.cancel()


async def echo_to_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers when the client has ended its half: so that half must come through alone."""
    data = await reader.read()
    writer.write(data)
    writer.close()


@pytest.mark.parametrize(
    "rules", [ProxyRules(), ProxyRules(one_way=0.005), ProxyRules(one_way=0.005, rpc=True)], ids=str
)
def test_bytes_and_the_end_of_one_half_come_through(rules: ProxyRules) -> None:
    sent = bytes(range(256)) * 9000

    async def check() -> None:
        async with proxied(echo_to_the_end, rules) as ((reader, writer), counts):
            writer.write(sent)
            writer.write_eof()
            assert await reader.read() == sent
            assert (counts.connections, counts.up, counts.down) == (1, len(sent), len(sent))

    run_loop(check())


def test_a_reset_comes_through() -> None:
    async def check() -> None:
        hung_up = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()
            hung_up.set()

        async with proxied(serve, ProxyRules(one_way=0.005)) as ((reader, writer), _):
            writer.write(b"xyz")
            await hung_up.wait()
            with pytest.raises(ConnectionResetError):
                await reader.read(1)

    run_loop(check())


def test_nobody_behind_it() -> None:
    nobody = socket.create_server(("127.0.0.1", 0))
    place = nobody.getsockname()
    nobody.close()

    async def check() -> None:
        listener = listening_socket()
        there = listener.getsockname()
        proxy = DelayingProxy(listener, partial(connect_to, *place), rules=ProxyRules(one_way=0.001))
        async with asyncio.timeout(SECONDS), Owner() as owner:
            owner.start(proxy.serve(), name="proxy")
            for _ in range(2):  # and it goes on
                reader, writer = await asyncio.open_connection(*there)
                with pytest.raises(ConnectionResetError):
                    await reader.readexactly(1)
                writer.close()
            owner.cancel()

    run_loop(check())


def test_what_it_holds_is_bounded() -> None:
    """A server that reads nothing, a client that writes for ever: the client is held back."""

    async def check() -> None:
        stop = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await stop.wait()
            writer.transport.abort()

        async with proxied(serve, ProxyRules(held_bytes=HELD)) as ((_, writer), counts):
            writer.write(bytes(HELD + 2 * KERNEL))
            await until(lambda: counts.up > HELD)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await writer.drain()
            assert counts.up < HELD + KERNEL
            writer.transport.abort()
            stop.set()

    run_loop(check())
