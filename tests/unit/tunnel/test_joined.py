"""A socketpair joined to one stream, by the side that opens it and by the one that gets it."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from meshd.base.errors import Broken, MeshdError, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import Waiting, WakefulLoop
from meshd.peer.interface import MetadataValue, Stream
from meshd.tunnel.compressed import COMPRESSED, CompressedStream
from meshd.tunnel.joined import JoinedTunnel, join
from meshd.tunnel.pump import Unwatched
from meshd.wire.compressed import Compression

from tests.conformance.run import until
from tests.unit.tunnel.far import PEER, FarMesh, echoing, read_all, streams

DATA = bytes(range(256)) * 5000


class Upper(Unwatched):
    """What it sees can be seen."""

    def to_peer(self, data: bytes | memoryview) -> bytes:
        return bytes(data).upper()


class Refusing(Unwatched):
    """Lets nothing in."""

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        raise RemoteProtocolError(f"{len(data)} bytes too many", code="rpc")


def read_end(child: socket.socket) -> bool:
    """The child sees that our end is gone."""
    child.settimeout(10)
    return child.recv(1) == b""


class Joined:
    """A tunnel that runs, and the child's end."""

    def __init__(self, tunnel: JoinedTunnel, mesh: FarMesh, child: socket.socket) -> None:
        self.tunnel = tunnel
        self.mesh = mesh
        self.child = child
        self.broken: list[MeshdError] = []

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(sock=self.child)


class Link:
    """A mesh whose streams are given to whoever waits for them at the far end."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[Stream] = asyncio.Queue()
        self.mesh = FarMesh(self.opened.put_nowait)


@asynccontextmanager
async def joined(*, error: MeshdError | None = None, compressed: bool = False) -> AsyncIterator[Joined]:
    ours, child = socket.socketpair()
    broken: list[MeshdError] = []
    with child:
        async with Owner() as owner:
            mesh = echoing(owner, error=error)
            tunnel = JoinedTunnel(
                mesh=mesh,
                peer=PEER,
                service="rpc",
                metadata={"lease": b"1"},
                end=ours,
                endpoint="3",
                inspector=Upper(),
                on_broken=broken.append,
                compresses=lambda: Compression.ALL if compressed else Compression.NOTHING,
            )
            it = Joined(tunnel, mesh, child)
            it.broken = broken
            owner.start(tunnel.serve(), name="tunnel")
            try:
                yield it
            finally:
                owner.cancel()
                tunnel.close()


def test_the_loop_stays_awake_for_messages_that_follow_each_other_closely() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WakefulLoop)
        async with joined() as it:
            reader, writer = await it.open()
            was_wakeful = [loop.is_wakeful]
            while not was_wakeful[-1]:
                writer.write(b"abc")
                assert await reader.readexactly(3) == b"ABC"
                was_wakeful.append(loop.is_wakeful)
            assert len(was_wakeful) > 1
            writer.close()

    with asyncio.Runner(loop_factory=lambda: WakefulLoop(Waiting.POLL)) as runner:
        runner.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("asks", [False, True])
def test_bytes_of_a_peer_that_is_sent_nothing_keep_no_loop_awake(asks: bool) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WakefulLoop)
        near, far, _, _ = streams()
        ours, child = socket.socketpair()
        with child:
            child.setblocking(False)
            async with Owner() as owner:
                work = join(near, ours, inspector=Unwatched(), on_broken=lambda _error: None, asks=asks)
                owner.start(work, name="join")
                for _ in range(100):
                    await far.write(b"x")
                    assert await loop.sock_recv(child, 1) == b"x"
                    assert not loop.is_wakeful
                owner.cancel()

    with asyncio.Runner(loop_factory=lambda: WakefulLoop(Waiting.POLL)) as runner:
        runner.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("compressed", [False, True])
async def test_bytes_go_both_ways_and_the_end_too(compressed: bool) -> None:
    async with joined(compressed=compressed) as it:
        reader, writer = await it.open()
        writer.write(b"abc" + DATA)
        await writer.drain()
        assert await reader.readexactly(3 + len(DATA)) == b"ABC" + DATA.upper()
        assert it.tunnel.endpoint == "3"
        assert it.tunnel.status.streams == 1
        writer.write_eof()
        assert await reader.read() == b""
        await until(lambda: it.tunnel.status.streams == 0)
        status = it.tunnel.status
        assert (status.sent_bytes, status.received_bytes) == (len(DATA) + 3, len(DATA) + 3)
        assert status.listen == "socketpair"
        metadata = {"lease": b"1", **(COMPRESSED if compressed else {})}
        assert it.mesh.opened == [(PEER, "rpc", metadata)], "it opens one stream, and no other"
        assert it.broken == []
        writer.close()


async def test_a_peer_that_takes_no_stream_is_told_and_the_child_sees_the_end() -> None:
    async with joined(error=Broken("not connected")) as it:
        reader, writer = await it.open()
        assert await reader.read() == b""
        assert [error.what for error in it.broken] == ["not connected"]
        writer.close()


async def test_one_that_is_closed_before_it_was_served_gives_its_end_back() -> None:
    ours, child = socket.socketpair()
    with child:
        tunnel = JoinedTunnel(
            mesh=FarMesh(lambda _stream: None),
            peer=PEER,
            service="rpc",
            metadata={},
            end=ours,
            endpoint="0",
            inspector=Unwatched(),
            on_broken=lambda _error: None,
        )
        tunnel.close()
        tunnel.close()
        await tunnel.serve()
        assert read_end(child)


@pytest.mark.parametrize("metadata", [{}, COMPRESSED], ids=["plain", "compressed"])
async def test_what_came_as_a_stream_is_joined_too(metadata: Mapping[str, MetadataValue]) -> None:
    ours, child = socket.socketpair()
    plain, far, _, _ = streams(metadata=metadata)
    near: Stream = CompressedStream(plain) if metadata else plain
    async with Owner() as owner:
        joining = join(far, ours, inspector=Unwatched(), on_broken=lambda _error: None)
        task = owner.start(joining, name="join")
        reader, writer = await asyncio.open_connection(sock=child)
        writer.write(DATA)
        writer.write_eof()
        near.write_eof()
        assert await read_all(near) == DATA
        assert await reader.read() == b""
        await task
        writer.close()


@pytest.mark.parametrize("how", [Compression.REPEATS, Compression.ALL])
@pytest.mark.parametrize("answers", [False, True])
async def test_both_ends_compress_floats_only_where_the_opener_said_so(
    how: Compression, answers: bool
) -> None:
    """The opener judges the path: the end that answers sends as many floats, and pays as much for each."""
    rng = random.Random(5)
    floats = struct.pack("<40000f", *(rng.gauss(0, 1) for _ in range(40_000)))
    async with Owner() as owner:
        link = Link()
        ours, child = socket.socketpair()
        tunnel = JoinedTunnel(
            mesh=link.mesh,
            peer=PEER,
            service="rpc",
            metadata={},
            end=ours,
            endpoint="0",
            inspector=Unwatched(),
            on_broken=lambda _error: None,
            compresses=lambda: how,
        )
        owner.start(tunnel.serve(), name="tunnel")
        there, far_child = socket.socketpair()
        far = await link.opened.get()
        owner.start(join(far, there, inspector=Unwatched(), on_broken=lambda _error: None), name="join")
        reader, writer = await asyncio.open_connection(sock=child)
        far_reader, far_writer = await asyncio.open_connection(sock=far_child)
        source, sink = (far_writer, reader) if answers else (writer, far_reader)
        source.write(bytes(200_000) + floats)
        assert await sink.readexactly(200_000 + len(floats)) == bytes(200_000) + floats
        near_port, far_port = link.mesh.ports
        crossed = len((far_port if answers else near_port).sent)
        assert crossed < len(floats) + 10_000, "what repeats itself is compressed either way"
        assert (crossed < 0.94 * len(floats)) is (how is Compression.ALL)  # of all floats 0.87
        writer.close()
        far_writer.close()
        owner.cancel()


async def test_what_the_inspector_refuses_ends_both() -> None:
    ours, child = socket.socketpair()
    near, far, _, _ = streams()
    broken: list[MeshdError] = []
    async with Owner() as owner:
        owner.start(join(far, ours, inspector=Refusing(), on_broken=broken.append), name="join")
        reader, writer = await asyncio.open_connection(sock=child)
        await near.write(b"four")
        with pytest.raises(Broken, match="4 bytes too many"):
            await near.read()
        assert await reader.read() == b""
        assert [error.what for error in broken] == ["4 bytes too many"]
        writer.close()


async def test_a_stream_that_is_compressed_in_another_way_costs_no_descriptor() -> None:
    ours, child = socket.socketpair()
    _near, far, _, _ = streams(metadata={"compressed": 99})
    with child:
        with pytest.raises(RemoteProtocolError, match="unknown way"):
            await join(far, ours, inspector=Unwatched(), on_broken=lambda _error: None)
        assert read_end(child)
