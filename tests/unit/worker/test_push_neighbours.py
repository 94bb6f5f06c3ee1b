"""A worker and its neighbours: who may push to its server, to whom that may push, and what is told of it."""

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken, EndOfStream, Refused
from meshd.base.peer_limits import NEIGHBOURS
from meshd.peer.interface import PeerState, Stream
from meshd.rpc import mesh_protocol
from meshd.wire.lease import PUSH_SERVICE, Admit, Grant, Introduced, Neighbour, Reached
from meshd.worker.push_neighbours import (
    ARRIVAL,
    COMPLETE,
    GONE_REACH_SECONDS,
    GONE_SECONDS,
    REACH_SECONDS,
)

from tests.unit.head.calls import scene
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import LEASE, Other, Server, heard, lent, says

pytestmark = pytest.mark.virtual


async def refused(stream: Stream) -> None:
    with pytest.raises(Refused, match="admits this member"):
        await stream.read()


async def test_only_who_was_admitted_pushes_and_past_the_filter(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        neighbour, stranger, head = Other(it), Other(it, "stranger"), call.head
        await refused(neighbour.push(it, grant))
        await says(call, Admit(neighbour.peer.raw, 2))
        await refused(stranger.push(it, grant))
        await refused(neighbour.push(it, Grant(bytes(16))))
        await refused(
            head.open_stream(it.bench.mesh.key.peer, PUSH_SERVICE, metadata={"lease": grant.lease_id})
        )
        assert server.told() == []
        stream = neighbour.push(it, grant)
        await stream.write(talk.hello())
        with pytest.raises(Broken):
            await heard(stream)
        assert server.told() == [(ARRIVAL, 2)]
        ((what, _),) = it.worker.status.refused
        assert f"`{neighbour.peer.short}`" in what
        assert "another worker's mesh-server broke the protocol" in what
        await call.release()
        await refused(neighbour.push(it, grant))


async def test_two_heads_admit_for_themselves(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        neighbour = Other(it)
        one, two = it.call("one"), it.call("two")
        mine, theirs = await one.lease(), await two.lease()
        await says(one, Admit(neighbour.peer.raw, 2))
        first, second = it.bench.children
        with closing(Server(first)) as server, closing(Server(second)) as another:
            await refused(neighbour.push(it, theirs))
            neighbour.push(it, mine)
            await asyncio.sleep(1)
            assert (server.told(), another.told()) == ([(ARRIVAL, 2)], [])


async def test_who_asks_is_answered_until_the_lease_ends(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        neighbour = Other(it)
        await says(call, Admit(neighbour.peer.raw, 2))
        stream = neighbour.push(it, grant, ask=1)
        await stream.accepted()
        await asyncio.sleep(1000)
        assert server.told() == []
        await call.release()
        async with asyncio.timeout(1):
            with pytest.raises(EndOfStream):
                await stream.read()


@pytest.mark.parametrize(("version", "always"), [(0, False), (5, False), (5, True)])
async def test_the_way_is_compressed_as_the_head_says(tmp_path: Path, version: int, always: bool) -> None:
    async with scene(tmp_path) as it:
        other, call = Other(it), it.call()
        await call.lease()
        said = replace(other.introduction(), compressed=version, always=always)
        await call.says(said)
        assert await call.hears() == Reached(3, "")
        (tunnel,) = it.bench.tunnels
        assert (tunnel.asked.compressed, tunnel.asked.always) == (version, always)
        other.over.set()


async def test_the_end_of_the_lease_ends_the_way(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        other, call = Other(it), it.call()
        await call.lease()
        await call.says(other.introduction())
        await call.hears()
        await call.release()
        assert it.bench.tunnels[0].closed
        assert it.bench.tunnels[0].asked.asks, "what a neighbour pushes, the head has asked for"
        with pytest.raises(EndOfStream):
            await other.streams[0].read()
        other.over.set()


async def test_a_neighbour_whose_head_spoke_later_is_asked_again(tmp_path: Path) -> None:
    async with lent(tmp_path) as (it, call, _grant, server):
        other = Other(it)
        other.refusal = "no live lease"
        other.mesh.since = asyncio.get_running_loop().time()
        other.mesh.say(PeerState.SUSPENDED)
        await call.says(other.introduction())
        await asyncio.sleep(1)
        other.mesh.say(PeerState.CONNECTED)
        await asyncio.sleep(1)
        assert server.told() == []
        other.refusal = None
        assert await call.hears() == Reached(3, "")
        assert server.told() == [(ARRIVAL, 3)]


@pytest.mark.parametrize("why", ["refused", "not connected", "long gone", "unknown"])
async def test_who_is_not_reached_in_time_is_no_neighbour(tmp_path: Path, why: str) -> None:
    async with lent(tmp_path) as (it, call, _grant, server):
        other = Other(it)
        if why == "refused":
            other.refusal = "not admitted"
        elif why != "unknown":
            ago = GONE_SECONDS + 1 if why == "long gone" else 0.0
            other.mesh.since = asyncio.get_running_loop().time() - ago
            other.mesh.say(PeerState.CONNECTING)
        peer = bytes(32) if why == "unknown" else other.peer.raw
        began = asyncio.get_running_loop().time()
        await call.says(Neighbour(7, peer, LEASE))
        await call.says(Introduced())
        answer = await call.hears()
        assert isinstance(answer, Reached) and answer.number == 7
        seconds = GONE_REACH_SECONDS if why == "long gone" else REACH_SECONDS
        assert answer.why_not.startswith(f"unreachable for {seconds:.0f} s: not ")
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds)
        await asyncio.sleep(0.1)
        assert server.told() == [(COMPLETE, 0)]
        assert it.bench.tunnels == []


def test_a_worker_takes_as_many_as_its_server_does() -> None:
    assert NEIGHBOURS.most == mesh_protocol.NEIGHBOURS
