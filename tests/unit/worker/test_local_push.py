"""A worker whose neighbour is on its machine: their servers get a connection, which ends with the lease."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base import local_way
from meshd.base.local_way import LOCAL, OFFERED_BYTES, LocalOffer, come
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.peer.interface import MetadataValue, Stream
from meshd.wire.lease import PUSH_SERVICE, Admit, Grant, Introduced, Reached
from meshd.worker.push_neighbours import ARRIVAL, COMPLETE, LOCAL_ARRIVAL, TAKEN, DirectWay, way_over

from tests.unit.head.calls import Call, Scene, scene
from tests.unit.worker.lent import Other, heard, lent, says

pytestmark = pytest.mark.virtual


class OtherHere(Other):
    """A worker on the same machine, which takes what it is offered as the stream is opened."""

    def __init__(self, it: Scene) -> None:
        super().__init__(it)
        self.ways: list[DirectWay] = []
        self.mesh.handle(PUSH_SERVICE, self._serve, allow=self._comes)

    def _comes(self, member: Member, metadata: Mapping[str, MetadataValue]) -> None:
        offered = metadata.get(LOCAL)
        if isinstance(offered, bytes) and (way := way_over(member.peer, local_way.come(offered))) is not None:
            self.ways.append(way)


def own_end(way: DirectWay) -> socket.socket:
    end = socket.socket(fileno=way.give())
    end.settimeout(10)
    return end


def has_ended(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@pytest.mark.parametrize("ends", ["lease", "stream"])
async def test_the_servers_get_a_connection_that_ends_with_the_lease_or_the_stream(
    tmp_path: Path, ends: str
) -> None:
    async with lent(tmp_path) as (it, call, _grant, server):
        other = OtherHere(it)
        await says(call, other.introduction(), Introduced())
        assert await call.hears() == Reached(3, "", direct=True)
        assert it.bench.tunnels == [], "nothing passes the daemons"
        (asked,) = other.streams
        assert await heard(asked) == TAKEN
        (kind, number, end), last = server.arrivals()
        assert (kind, number, last) == (LOCAL_ARRIVAL, 3, (COMPLETE, 0, None))
        assert end is not None
        [way] = other.ways
        with end, own_end(way) as theirs:
            end.sendall(b"pushed")
            assert theirs.recv(100) == b"pushed"
            [shown] = it.worker.status.tunnels
            assert (shown.peer, shown.listen, shown.streams) == (other.peer, "local", 1)
            await asyncio.sleep(1000)
            assert not has_ended(end)
            if ends == "lease":
                await call.release()
            else:
                asked.reset(1, "the member was banned")
                await asyncio.sleep(0.1)
            assert has_ended(end) and has_ended(theirs), "for both servers"
            assert it.worker.status.tunnels == []
        way.cut()
        other.over.set()


async def _lent_with_offer(
    it: Scene, call: Call, grant: Grant, offered: MetadataValue
) -> tuple[Other, Stream]:
    neighbour = Other(it)
    await says(call, Admit(neighbour.peer.raw, 2))
    stream = neighbour.push(it, grant, ask=1, local=offered)
    await stream.accepted()
    return neighbour, stream


@pytest.mark.parametrize("ends", ["lease", "stream", "goodbye"])
async def test_what_an_admitted_neighbour_offers_is_used_when_it_says_so(tmp_path: Path, ends: str) -> None:
    with closing(LocalOffer()) as offer:
        async with lent(tmp_path) as (it, call, grant, server):
            neighbour, stream = await _lent_with_offer(it, call, grant, offer.offered)
            way = way_over(neighbour.peer, offer.take())
            assert way is not None, "it has come before its stream was accepted"
            await asyncio.sleep(1)
            assert server.told() == [], "not before the neighbour says so"
            await stream.write(TAKEN)
            await asyncio.sleep(1)
            [(kind, number, end)] = server.arrivals()
            assert (kind, number) == (LOCAL_ARRIVAL, 2) and end is not None
            with end, own_end(way) as theirs:
                theirs.sendall(b"pushed")
                assert end.recv(100) == b"pushed"
                if ends == "lease":
                    await call.release()
                elif ends == "stream":
                    stream.reset(1, "the session is over")
                else:
                    stream.write_eof()
                await asyncio.sleep(0.1)
                assert has_ended(end) and has_ended(theirs)
            way.cut()


async def test_who_does_not_take_what_it_offered_pushes_through_the_daemons(tmp_path: Path) -> None:
    with closing(LocalOffer()) as offer:
        async with lent(tmp_path) as (it, call, grant, server):
            neighbour, _stream = await _lent_with_offer(it, call, grant, offer.offered)
            offer.close()
            neighbour.push(it, grant)
            await asyncio.sleep(1)
            assert server.told() == [(ARRIVAL, 2)]


@pytest.mark.parametrize(
    "change",
    [
        lambda _: bytes(OFFERED_BYTES),
        lambda offered: offered[:-1],
        lambda _: 7,
        lambda _: "name",
        lambda _: b"",
    ],
    ids=["stale name", "short", "number", "text", "empty"],
)
async def test_who_offers_what_leads_nowhere_pushes_through_the_daemons(
    tmp_path: Path, change: Callable[[bytes], MetadataValue]
) -> None:
    with closing(LocalOffer()) as offer:
        async with lent(tmp_path) as (it, call, grant, server):
            neighbour, stream = await _lent_with_offer(it, call, grant, change(offer.offered))
            assert offer.take() is None
            await stream.write(TAKEN)
            await asyncio.sleep(1)
            assert server.told() == []
            neighbour.push(it, grant)
            await asyncio.sleep(1)
            assert server.told() == [(ARRIVAL, 2)]


async def test_who_was_not_admitted_is_not_connected(tmp_path: Path) -> None:
    with closing(LocalOffer()) as offer:
        async with lent(tmp_path) as (it, call, grant, _server):
            stranger = Other(it, "stranger")
            stranger.push(it, grant, ask=1, local=offer.offered)
            await says(call, Admit(Other(it).peer.raw, 2))
            stranger.push(it, grant, ask=1, local=offer.offered)
            await asyncio.sleep(0.1)
            assert offer.take() is None


async def test_who_has_a_stream_gets_no_local_connection_as_well(tmp_path: Path) -> None:
    with closing(LocalOffer()) as offer:
        async with lent(tmp_path) as (it, call, grant, server):
            neighbour, stream = await _lent_with_offer(it, call, grant, offer.offered)
            way = way_over(neighbour.peer, offer.take())
            assert way is not None
            neighbour.push(it, grant)
            await asyncio.sleep(1)
            await stream.write(TAKEN)
            await asyncio.sleep(1)
            assert server.told() == [(ARRIVAL, 2)]
            way.cut()


async def test_who_wants_all_compressed_is_not_short_cut(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        other, call = OtherHere(it), it.call()
        await call.lease()
        await call.says(replace(other.introduction(), compressed=5, always=True))
        assert await call.hears() == Reached(3, "")
        (asked,) = other.streams
        assert LOCAL not in asked.metadata
        assert len(it.bench.tunnels) == 1
        other.over.set()


async def test_what_the_server_reports_is_counted_and_timed(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, _grant, server):
        other = OtherHere(it)
        await says(call, other.introduction(), Introduced())
        await call.hears()
        child = it.bench.children[0]
        child.report("came 3 1 40")
        child.report("pushed 3 1 50")
        child.report("pushed 3 2 100")
        child.report("came 4 1 7000")  # of nobody
        child.report("came 3 x 7000")
        child.report("came 3 2")
        await asyncio.sleep(1)
        [shown] = it.worker.status.tunnels
        assert (shown.received_bytes, shown.sent_bytes) == (40, 100)
        for _, _, end in server.arrivals():
            if end is not None:
                end.close()
        for way in other.ways:
            way.cut()
        other.over.set()


PEER = PeerId(bytes(32))


def test_its_ends_block_as_a_mesh_server_expects() -> None:
    with closing(LocalOffer()) as offer:
        second = way_over(PEER, come(offer.offered))
        first = way_over(PEER, offer.take())
    for way in (first, second):
        assert way is not None
        given = way.give()
        assert os.get_blocking(given)
        os.close(given)
        way.cut()


def test_there_is_none_without_a_connection_or_a_free_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert way_over(PEER, None) is None

    def none_free(_descriptor: int) -> int:
        raise OSError(24, "Too many open files")

    ours, theirs = socket.socketpair()
    monkeypatch.setattr(os, "dup", none_free)
    with theirs:
        assert way_over(PEER, ours) is None
        assert theirs.recv(1) == b""
