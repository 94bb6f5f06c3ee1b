"""A forward with real sockets: who may come in, and what is then carried."""

import asyncio
import errno
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.tunnel import user_tunnels as module
from meshd.tunnel.pump import Counter
from meshd.tunnel.user_tunnels import MAX_CLIENTS, Forward, connect_through

from tests.conformance.run import run, until
from tests.unit.tunnel.far import PEER, FarMesh, echoing, streams

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Tunnel:
    """A forward that runs, and the far ends of its streams."""

    def __init__(self, owner: Owner, mesh: FarMesh, forward: Forward, broken: list[MeshdError]) -> None:
        self.owner = owner
        self.mesh = mesh
        self.forward = forward
        self.broken = broken
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.forward.port)
        self._open.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        for writer in self._open:
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def tunnel() -> AsyncIterator[Tunnel]:
    broken: list[MeshdError] = []
    async with Owner() as owner:
        mesh = echoing(owner)
        forward = Forward(
            mesh=mesh,
            peer=PEER,
            service="web",
            listen=("127.0.0.1", 0),
            owner_check=None,
            on_broken=broken.append,
        )
        owner.start(forward.serve(), name="forward")
        made = Tunnel(owner, mesh, forward, broken)
        try:
            yield made
        finally:
            await made.close()
            owner.cancel()


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b"impossible"
    except ConnectionResetError:
        return True


def test_more_connections_than_there_may_be_are_closed() -> None:
    async def main() -> None:
        async with tunnel() as it:
            for _ in range(MAX_CLIENTS):
                await it.connect()
            await until(lambda: it.forward.streams == MAX_CLIENTS)
            reader, _ = await it.connect()
            assert await reader.read() == b""
            assert len(it.mesh.opened) == MAX_CLIENTS

    run(main())


def test_no_descriptor_left_is_a_pause_and_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NO_ROOM_SECONDS", 0.01)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        accept = loop.sock_accept
        failures = [OSError(errno.EMFILE, "Too many open files"), ConnectionAbortedError()]

        async def failing(sock: socket.socket) -> tuple[socket.socket, object]:
            if failures:
                raise failures.pop()
            return await accept(sock)

        monkeypatch.setattr(loop, "sock_accept", failing)
        async with tunnel() as it:
            reader, writer = await it.connect()
            writer.write(b"hello")
            writer.write_eof()
            assert await reader.read() == b"hello"
            assert not failures

    run(main())


def test_a_reset_of_the_client_reaches_the_peer() -> None:
    async def main() -> None:
        async with tunnel() as it:
            reader, writer = await it.connect()
            writer.write(b"hello")
            await reader.readexactly(5)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            await until(lambda: len(it.broken) == 1)
            assert "local connection lost" in it.broken[0].what

    run(main())


def test_its_end_ends_every_connection_even_one_just_taken() -> None:
    async def main() -> None:
        for turns in range(12):
            async with tunnel() as it:
                reader, _ = await it.connect()
                for _ in range(turns):
                    await asyncio.sleep(0)
            assert await is_reset(reader) or reader.at_eof()

    run(main())


async def with_target(serve: Serve, use: Callable[[int], Awaitable[None]]) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        await use(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await server.wait_closed()


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
