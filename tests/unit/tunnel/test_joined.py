"""A socketpair joined to one stream, by the side that opens it and by the one that gets it.

A stream to a member that is there without a session waits for one, and for nothing else.
"""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.local_way import LOCAL, come
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import Waiting, WakefulLoop
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.mux.events import Code
from meshd.peer.interface import Allow, Handler, MetadataValue, PeerState, PeerStatus, Stream
from meshd.tunnel.compressed import COMPRESSED, CompressedStream
from meshd.tunnel.interface import LISTEN_LOCAL
from meshd.tunnel.joined import ON_DEMAND_SECONDS, JoinedTunnel, carried, join, open_on_demand
from meshd.tunnel.local import HIGH_WATER
from meshd.tunnel.pump import Unwatched
from meshd.wire.compressed import Compression

from tests.conformance.run import until
from tests.sim import loop as virtual
from tests.unit.tunnel.far import PEER, FarMesh, Port, echoing, read_all, streams

DATA = bytes(range(256)) * 5000


class Upper(Unwatched):
    """An upper side whose calls can be seen."""

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


LONG = random.Random(7).randbytes(3_000_000)


class Pair:
    """Both ends of a stream whose bytes go past it, and the ports of that stream."""

    def __init__(self, near: Stream, far: Stream, ports: tuple[Port, Port]) -> None:
        self.near, self.far, self.ports = near, far, ports

    @property
    def crossed(self) -> int:
        """Count the bytes on the mesh stream itself."""
        return sum(len(port.sent) for port in self.ports)


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    near, far, *ports = streams()
    here, there = socket.socketpair()
    with socket.socket() as child:
        async with carried(near, here, child) as first, carried(far, there, child) as second:
            yield Pair(first, second, (ports[0], ports[1]))
            first.write_eof()
            second.write_eof()


async def test_bytes_cross_in_order_both_ways_and_none_on_the_link() -> None:
    async with pair() as it, Owner() as owner:
        there = owner.start(read_all(it.far), name="there")
        back = owner.start(read_all(it.near), name="back")
        for at in range(0, len(LONG), 70_000):
            await it.near.write(LONG[at : at + 70_000])
            await it.far.write(LONG[at : at + 30_000])
        it.near.write_eof()
        it.far.write_eof()
        assert await there == LONG
        assert await back == b"".join(LONG[at : at + 30_000] for at in range(0, len(LONG), 70_000))
        assert it.crossed == 0


async def test_a_half_close_leaves_the_other_way_open() -> None:
    async with pair() as it:
        it.near.write_eof()
        with pytest.raises(EndOfStream):
            await it.far.read()
        await it.far.write(b"still here")
        assert await it.near.read() == b"still here"


async def test_a_slow_reader_slows_the_writer_down() -> None:
    async with pair() as it, Owner() as owner:
        written = 0

        async def write() -> None:
            nonlocal written
            while True:
                await it.near.write(bytes(64 << 10))
                written += 64 << 10

        writing = owner.start(write(), name="writer")
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        assert written < 16 * HIGH_WATER, "both sides hold HIGH_WATER, and the kernel two buffers"
        assert it.near.try_write(b"x") == 0
        writing.cancel()
        it.near.reset(Code.CANCELLED, "enough")


@pytest.mark.parametrize("side", ["near", "far"])
async def test_a_reset_ends_both_ends_as_broken(side: str) -> None:
    async with pair() as it:
        resets, other = (it.near, it.far) if side == "near" else (it.far, it.near)
        resets.reset(Code.BROKEN, "it is over")
        with pytest.raises(Broken, match="it is over"):
            await other.read()
        with pytest.raises(Broken, match="it is over"):
            await other.write(bytes(1))


async def test_a_connection_that_ends_by_itself_waits_for_the_word_of_the_session() -> None:
    """As when the peer's daemon is killed: a lost link is no end either, before the session says so."""

    near, far, _, _ = streams()
    here, there = socket.socketpair()
    async with carried(near, here, here) as stream:
        there.close()
        await stream.write(b"lost, as what is on its way over a link")
        async with Owner() as owner:
            reads = owner.start(_broken(stream.read()), name="read")
            writes = owner.start(_broken(stream.write(bytes(1))), name="write")
            await asyncio.sleep(0.2)
            assert not reads.done() and not writes.done()
            far.reset(Code.BROKEN, "its process is gone")
            assert "gone" in await reads
            assert "gone" in await writes


async def _broken(work: object) -> str:
    with pytest.raises(Broken) as caught:
        await work  # type: ignore[misc]
    return caught.value.what


async def test_bytes_on_the_stream_itself_break_both() -> None:
    """As when one side found no connection, and the other one did."""

    near, far, port, _ = streams()
    here, there = socket.socketpair()
    with there, socket.socket() as child:
        async with carried(near, here, child) as stream, Owner() as owner:
            owner.start(far.write(b"over the link"), name="far")
            with pytest.raises(Broken, match="bytes on a stream"):
                await stream.read()
            assert [code for code, _ in port.resets] == [Code.BROKEN]
            there.settimeout(10)
            assert there.recv(1) == b""


async def test_a_child_is_told_if_there_is_no_time_to_use_the_connection() -> None:
    near, _, port, _ = streams()
    here, there = socket.socketpair()
    ours, child = socket.socketpair()
    with there, child:
        async with Owner() as owner:
            work = join(near, ours, inspector=None, on_broken=lambda _: None, direct=here)
            task = owner.start(work, name="join")
            await asyncio.sleep(0)
            task.cancel()
        child.settimeout(10)
        assert child.recv(1) == b""
        assert len(port.resets) == 1


@asynccontextmanager
async def tunnel_to(
    *, comes: bool, is_here: bool = True, compression: Compression = Compression.NOTHING
) -> AsyncIterator[tuple[JoinedTunnel, FarMesh, socket.socket, socket.socket]]:
    """Yield a tunnel with the child's end here, and the end of the child that it leads to."""
    ours, child = socket.socketpair()
    theirs, server = socket.socketpair()

    with child, server:
        async with Owner() as owner:

            def opened(far: Stream) -> None:
                offer = far.metadata.get(LOCAL)
                direct = come(offer) if comes and isinstance(offer, bytes) else None
                work = join(far, theirs, inspector=None, on_broken=lambda _: None, direct=direct)
                owner.start(work, name="far")

            mesh = FarMesh(opened)
            tunnel = JoinedTunnel(
                mesh=mesh,
                peer=PEER,
                service="rpc",
                metadata={"lease": b"1"},
                end=ours,
                endpoint="0",
                inspector=None,
                on_broken=lambda _: None,
                compresses=lambda: compression,
                is_here=lambda: is_here,
            )
            owner.start(tunnel.serve(), name="tunnel")
            yield tunnel, mesh, child, server
            owner.cancel()
            tunnel.close()


async def _exchange(child: socket.socket, server: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    for end in child, server:
        end.setblocking(False)
    await loop.sock_sendall(child, b"there")
    assert await loop.sock_recv(server, 100) == b"there"
    await loop.sock_sendall(server, b"back again")
    assert await loop.sock_recv(child, 100) == b"back again"


async def test_a_tunnel_to_a_node_on_this_machine_goes_past_the_link() -> None:
    async with tunnel_to(comes=True) as (tunnel, mesh, child, server):
        await _exchange(child, server)
        status = tunnel.status
        assert (status.listen, status.sent_bytes, status.received_bytes) == (LISTEN_LOCAL, 5, 10)
        assert not any(port.sent for port in mesh.ports)
        child.close()
        assert await asyncio.get_running_loop().sock_recv(server, 1) == b""
        server.close()
        await until(lambda: tunnel.status.streams == 0)


@pytest.mark.parametrize("why", ["does not come", "is elsewhere", "compressed"])
async def test_a_tunnel_goes_over_the_link_where_there_is_no_direct_connection(why: str) -> None:
    compression = Compression.ALL if why == "compressed" else Compression.NOTHING
    async with tunnel_to(
        comes=why != "does not come", is_here=why != "is elsewhere", compression=compression
    ) as (tunnel, mesh, child, server):
        await _exchange(child, server)
        assert tunnel.status.listen == "socketpair"
        assert all(port.sent for port in mesh.ports)
        assert (LOCAL in mesh.opened[0][2]) is (why == "does not come")


def _status(state: PeerState, *, present: bool) -> PeerStatus:
    return PeerStatus(
        peer=PEER,
        name="garage",
        role="worker",
        state=state,
        paths=(),
        native=None,
        software="",
        resumes=0,
        since=0.0,
        last_error="",
        clock_offset=None,
        present=present,
    )


class SlowMesh:
    """Connected after so many seconds, from when a stream is wanted."""

    def __init__(self, seconds: float, *, present: bool) -> None:
        self._seconds = seconds
        self._present = present
        self._wanted_at: float | None = None
        self.tries = 0

    def _connected(self) -> bool:
        now = asyncio.get_running_loop().time()
        return self._wanted_at is not None and now >= self._wanted_at + self._seconds

    def peers(self) -> Sequence[PeerStatus]:
        if self._connected():
            return (_status(PeerState.CONNECTED, present=False),)
        return (_status(PeerState.KNOWN, present=self._present),)

    def member(self, peer: PeerId) -> Member | None:
        return None

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        self.tries += 1
        if self._wanted_at is None:
            self._wanted_at = asyncio.get_running_loop().time()
        if not self._connected():
            raise Broken("not connected")
        return streams()[0]

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        raise AssertionError("nothing is served here")

    async def changed(self, seen: int) -> int:
        await asyncio.sleep(0.5)
        return seen + 1


def _open(mesh: SlowMesh) -> Callable[[], float]:
    def run() -> float:
        async def main() -> float:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await open_on_demand(mesh, PEER, "web", metadata={})
            return loop.time() - began

        return virtual.run(main())

    return run


def test_it_waits_for_the_session() -> None:
    mesh = SlowMesh(2.0, present=True)
    assert 2.0 <= _open(mesh)() < 3.0 and mesh.tries == 2


def test_it_does_not_wait_for_ever() -> None:
    mesh = SlowMesh(ON_DEMAND_SECONDS + 5, present=True)
    with pytest.raises(Broken):
        _open(mesh)()
    assert mesh.tries == 2


def test_who_is_away_is_not_waited_for() -> None:
    mesh = SlowMesh(2.0, present=False)
    with pytest.raises(Broken):
        _open(mesh)()
    assert mesh.tries == 1
