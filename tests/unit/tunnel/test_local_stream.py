"""A stream whose bytes go past the link of two nodes on one machine: it means what the stream meant."""

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from meshd.base.errors import Broken, EndOfStream
from meshd.base.local_way import LOCAL, come
from meshd.base.tasks import Owner
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.tunnel.interface import LISTEN_LOCAL
from meshd.tunnel.joined import JoinedTunnel, carried, join
from meshd.tunnel.local import HIGH_WATER
from meshd.wire.compressed import Compression

from tests.conformance.run import run, until
from tests.unit.tunnel.far import PEER, FarMesh, Port, read_all, streams

DATA = random.Random(7).randbytes(3_000_000)


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


def test_bytes_cross_in_order_both_ways_and_none_on_the_link() -> None:
    async def main() -> None:
        async with pair() as it, Owner() as owner:
            there = owner.start(read_all(it.far), name="there")
            back = owner.start(read_all(it.near), name="back")
            for at in range(0, len(DATA), 70_000):
                await it.near.write(DATA[at : at + 70_000])
                await it.far.write(DATA[at : at + 30_000])
            it.near.write_eof()
            it.far.write_eof()
            assert await there == DATA
            assert await back == b"".join(DATA[at : at + 30_000] for at in range(0, len(DATA), 70_000))
            assert it.crossed == 0

    run(main())


def test_a_half_close_leaves_the_other_way_open() -> None:
    async def main() -> None:
        async with pair() as it:
            it.near.write_eof()
            with pytest.raises(EndOfStream):
                await it.far.read()
            await it.far.write(b"still here")
            assert await it.near.read() == b"still here"

    run(main())


def test_a_slow_reader_slows_the_writer_down() -> None:
    async def main() -> None:
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

    run(main())


@pytest.mark.parametrize("side", ["near", "far"])
def test_a_reset_ends_both_ends_as_broken(side: str) -> None:
    async def main() -> None:
        async with pair() as it:
            resets, other = (it.near, it.far) if side == "near" else (it.far, it.near)
            resets.reset(Code.BROKEN, "it is over")
            with pytest.raises(Broken, match="it is over"):
                await other.read()
            with pytest.raises(Broken, match="it is over"):
                await other.write(bytes(1))

    run(main())


def test_a_connection_that_ends_by_itself_waits_for_the_word_of_the_session() -> None:
    """As when the peer's daemon is killed: a lost link is no end either, before the session says so."""

    async def main() -> None:
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

    run(main())


async def _broken(work: object) -> str:
    with pytest.raises(Broken) as caught:
        await work  # type: ignore[misc]
    return caught.value.what


def test_bytes_on_the_stream_itself_break_both() -> None:
    """As when one side found no connection, and the other one did."""

    async def main() -> None:
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

    run(main())


def test_a_child_is_told_if_there_is_no_time_to_use_the_connection() -> None:
    async def main() -> None:
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

    run(main())


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


def test_a_tunnel_to_a_node_on_this_machine_goes_past_the_link() -> None:
    async def main() -> None:
        async with tunnel_to(comes=True) as (tunnel, mesh, child, server):
            await _exchange(child, server)
            status = tunnel.status
            assert (status.listen, status.sent_bytes, status.received_bytes) == (LISTEN_LOCAL, 5, 10)
            assert not any(port.sent for port in mesh.ports)
            child.close()
            assert await asyncio.get_running_loop().sock_recv(server, 1) == b""
            server.close()
            await until(lambda: tunnel.status.streams == 0)

    run(main())


@pytest.mark.parametrize("why", ["does not come", "is elsewhere", "compressed"])
def test_a_tunnel_goes_over_the_link_where_there_is_no_direct_connection(why: str) -> None:
    async def main() -> None:
        compression = Compression.ALL if why == "compressed" else Compression.NOTHING
        async with tunnel_to(
            comes=why != "does not come", is_here=why != "is elsewhere", compression=compression
        ) as (tunnel, mesh, child, server):
            await _exchange(child, server)
            assert tunnel.status.listen == "socketpair"
            assert all(port.sent for port in mesh.ports)
            assert (LOCAL in mesh.opened[0][2]) is (why == "does not come")

    run(main())
