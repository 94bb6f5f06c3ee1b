"""A forward with real sockets: who may come in, and what is then carried."""

import asyncio
import errno
import os
import socket
import stat
import struct
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from pathlib import Path

import pytest
from meshd.base.errors import Broken, MeshdError, UserError
from meshd.base.tasks import Owner
from meshd.tunnel import forward as module
from meshd.tunnel.compressed import COMPRESSED
from meshd.tunnel.forward import MAX_CLIENTS, Forward
from meshd.tunnel.interface import OwnerCheck
from meshd.tunnel.pump import Unwatched

from tests.conformance.run import run, until
from tests.unit.tunnel.far import PEER, FarMesh, echoing

SECRET = bytes(range(32))


class Tunnel:
    """A forward that runs, and the far ends of its streams."""

    def __init__(self, owner: Owner, mesh: FarMesh, forward: Forward, broken: list[MeshdError]) -> None:
        self.owner = owner
        self.mesh = mesh
        self.forward = forward
        self.broken = broken
        self._open: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.forward.path is not None:
            reader, writer = await asyncio.open_unix_connection(self.forward.path)
        else:
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
async def tunnel(
    *,
    secret: bytes = b"",
    owner_check: OwnerCheck | None = None,
    error: MeshdError | None = None,
    watch: Callable[[], AbstractContextManager["Upper"]] | None = None,
    compresses: Callable[[], bool] = lambda: False,
    listen: tuple[str, int] | Path = ("127.0.0.1", 0),
) -> AsyncIterator[Tunnel]:
    broken: list[MeshdError] = []
    async with Owner() as owner:
        mesh = echoing(owner, error=error)
        forward = Forward(
            mesh=mesh,
            peer=PEER,
            service="rpc",
            metadata={"lease": b"1"},
            secret=secret,
            owner_check=owner_check,
            watch=watch,
            on_broken=broken.append,
            compresses=compresses,
            listen=listen,
        )
        owner.start(forward.serve(), name="forward")
        made = Tunnel(owner, mesh, forward, broken)
        try:
            yield made
        finally:
            await made.close()
            owner.cancel()


class Upper(Unwatched):
    """What it sees can be seen."""

    def to_peer(self, data: bytes | memoryview) -> bytes:
        return bytes(data).upper()

    def from_peer(self, data: bytes | memoryview) -> bytes:
        return bytes(data).replace(b"O", b"0")


async def is_reset(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b"impossible"
    except ConnectionResetError:
        return True


def test_bytes_go_both_ways_and_the_end_too() -> None:
    async def main() -> None:
        async with tunnel() as it:
            reader, writer = await it.connect()
            data = bytes(range(256)) * 5000
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == data
            assert it.mesh.opened == [(PEER, "rpc", {"lease": b"1"})]
            await until(lambda: it.forward.status.streams == 0)
            status = it.forward.status
            assert (status.sent_bytes, status.received_bytes) == (len(data), len(data))
            assert it.broken == []

    run(main())


def test_each_stream_is_compressed_or_not_as_the_path_is_then() -> None:
    async def main() -> None:
        paths = iter([True, False])
        async with tunnel(compresses=lambda: next(paths), watch=lambda: nullcontext(Upper())) as it:
            data = b"abc" * 100_000
            for _ in range(2):
                reader, writer = await it.connect()
                writer.write(data)
                writer.write_eof()
                assert await reader.read() == data.upper()  # an inspector sees the bytes themselves
            plain = {"lease": b"1"}
            assert [metadata for _, _, metadata in it.mesh.opened] == [{**plain, **COMPRESSED}, plain]
            assert it.mesh.wire_bytes < 1.05 * 2 * len(data)
            await until(lambda: it.forward.status.streams == 0)
            assert it.forward.status.sent_bytes == 2 * len(data)

    run(main())


@pytest.mark.parametrize("pieces", [[32], [1] * 32, [31, 1], [5, 20, 7]])
def test_the_secret_may_come_in_any_pieces_and_is_not_passed_on(pieces: list[int]) -> None:
    async def main() -> None:
        async with tunnel(secret=SECRET) as it:
            reader, writer = await it.connect()
            at = 0
            for size in pieces:
                writer.write(SECRET[at : at + size])
                at += size
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"behind it")
            writer.write_eof()
            assert await reader.read() == b"behind it"

    run(main())


def test_what_comes_in_one_piece_with_the_secret_is_passed_on_and_inspected() -> None:
    async def main() -> None:
        async with tunnel(secret=SECRET, watch=lambda: nullcontext(Upper())) as it:
            reader, writer = await it.connect()
            writer.write(SECRET + b"hello, ")
            writer.write(b"world")
            writer.write_eof()
            assert await reader.read() == b"HELL0, W0RLD"

    run(main())


@pytest.mark.parametrize("first", [bytes(32), SECRET[:31] + b"x", b"GET / HTTP/1.1\r\n" + bytes(40)])
def test_a_wrong_secret_is_reset_and_opens_nothing(first: bytes) -> None:
    async def main() -> None:
        async with tunnel(secret=SECRET) as it:
            reader, writer = await it.connect()
            writer.write(first)
            assert await is_reset(reader)
            assert it.mesh.opened == []

    run(main())


@pytest.mark.parametrize("said", [b"", SECRET[:10]])
def test_a_client_that_does_not_say_the_secret_is_reset(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECRET_SECONDS", 0.05)

    async def main() -> None:
        async with tunnel(secret=SECRET) as it:
            reader, writer = await it.connect()
            writer.write(said)
            assert await is_reset(reader)
            assert it.mesh.opened == []

    run(main())


def test_a_client_that_leaves_before_its_secret_is_forgotten() -> None:
    async def main() -> None:
        async with tunnel(secret=SECRET) as it:
            _, writer = await it.connect()
            await until(lambda: it.forward.status.streams == 1)
            writer.write_eof()
            await until(lambda: it.forward.status.streams == 0)
            assert it.mesh.opened == []

    run(main())


def test_a_client_of_somebody_else_is_reset() -> None:
    asked: list[tuple[tuple[str, int], tuple[str, int]]] = []

    async def owner_check(client: tuple[str, int], listener: tuple[str, int]) -> bool:
        asked.append((client, listener))
        return False

    async def main() -> None:
        async with tunnel(owner_check=owner_check) as it:
            reader, writer = await it.connect()
            mine = writer.get_extra_info("sockname")
            assert await is_reset(reader)
            assert asked == [(mine, ("127.0.0.1", it.forward.port))]
            assert it.mesh.opened == []

    run(main())


def test_without_a_session_the_client_is_reset_and_the_reason_told() -> None:
    async def main() -> None:
        async with tunnel(error=Broken("not connected")) as it:
            reader, _ = await it.connect()
            assert await is_reset(reader)
            assert [error.what for error in it.broken] == ["not connected"]

    run(main())


def test_more_connections_than_there_may_be_are_closed() -> None:
    async def main() -> None:
        async with tunnel() as it:
            for _ in range(MAX_CLIENTS):
                await it.connect()
            await until(lambda: it.forward.status.streams == MAX_CLIENTS)
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


def test_at_a_unix_socket_bytes_go_as_over_tcp_and_its_file_is_private_and_goes() -> None:
    async def main(folder: Path) -> None:
        async with tunnel(secret=SECRET, listen=folder) as it:
            path = it.forward.path
            assert path is not None and path.parent == folder
            assert it.forward.endpoint == it.forward.status.listen == f"unix:{path.name}"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            data = bytes(range(256)) * 5000
            reader, writer = await it.connect()
            writer.write(SECRET + data)
            writer.write_eof()
            assert await reader.read() == data
            reader, writer = await it.connect()
            writer.write(bytes(32))
            assert await is_reset(reader) or reader.at_eof()
            assert len(it.mesh.opened) == 1
        assert not path.exists()

    with tempfile.TemporaryDirectory() as name:
        run(main(Path(name)))


@pytest.mark.parametrize(("user", "comes"), [(0, True), (os.geteuid(), True), (os.geteuid() + 1, False)])
def test_at_a_unix_socket_another_user_is_refused_even_with_the_secret(
    user: int, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "peer_of", lambda _connection: (user, 1))

    async def main(folder: Path) -> None:
        async with tunnel(secret=SECRET, listen=folder) as it:
            reader, writer = await it.connect()
            writer.write(SECRET + b"hello")
            writer.write_eof()
            try:
                assert await reader.read() == (b"hello" if comes else b"")
            except ConnectionError:  # it was closed before the secret could be sent
                assert not comes
            assert len(it.mesh.opened) == comes

    with tempfile.TemporaryDirectory() as name:
        run(main(Path(name)))


def test_a_folder_that_takes_no_socket_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot create a socket in"):
        Forward(
            mesh=FarMesh(lambda _stream: None),
            peer=PEER,
            service="rpc",
            metadata={},
            listen=tmp_path / "none",
        )
