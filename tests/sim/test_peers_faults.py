"""Peers that break the rules: the session ends on both sides, and nobody is dialled without pause."""

import asyncio

import pytest
from meshd.admin.snapshot import peer_view
from meshd.base.errors import Broken, Busy
from meshd.peer.interface import PeerState
from meshd.wire.limits import MAX_STREAMS

from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, pair


@pytest.mark.virtual
async def test_nonsense_on_a_link_ends_the_session_and_the_next_one_works() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"hello") == b"hello"
        cable = world.cable("anna", "bert")
        cable.garble = 1
        with pytest.raises(Broken):
            await exchange(stream, b"this one is garbled")
            await stream.read()
        await asyncio.sleep(60)
        await leader.sees(follower, PeerState.CONNECTED)
        again = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(again, b"hello again") == b"hello again"
        for node, far in ((leader, follower), (follower, leader)):
            assert len(node.status_of(far).paths) == 1


@pytest.mark.virtual
async def test_a_peer_that_talks_nonsense_for_ever_is_dialled_with_growing_pauses() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        cable = world.cable("anna", "bert")
        leader.dialer.dials = 0
        cable.cut()
        for _ in range(600):
            cable.garble = 1 if leader.status_of(follower).state is PeerState.CONNECTED else 0
            await asyncio.sleep(1)
        assert 3 < leader.dialer.dials < 60


@pytest.mark.virtual
async def test_nonsense_in_the_proof_or_the_greeting_is_a_failed_dial() -> None:
    async with World() as world:
        one, other = world.node("anna"), world.node("bert")
        one.knows(other)
        cable = world.cable("anna", "bert")
        cable.garble = 40
        other.start()
        one.start()
        await asyncio.sleep(30)
        assert one.dialer.dials < 40
        cable.garble = 0
        await one.sees(other, PeerState.CONNECTED, seconds=150)


@pytest.mark.virtual
async def test_what_a_peer_did_wrong_is_shown_for_an_hour() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        assert leader.status_of(follower).faults == follower.status_of(leader).faults == 0
        serve_echo(follower)
        world.cable("anna", "bert").garble = 1
        with pytest.raises(Broken):
            await exchange(leader.mesh.open_stream(follower.peer, "echo", metadata={}), b"garbled")
        await asyncio.sleep(60)
        await leader.sees(follower, PeerState.CONNECTED)
        told = follower.status_of(leader)
        assert told.faults == 1 and told.last_fault
        assert leader.status_of(follower).faults == 0, "it did nothing wrong itself"
        view = peer_view(told, now=asyncio.get_running_loop().time(), wall=0.0)
        assert (view.faults, view.last_fault) == (told.faults, told.last_fault)
        await asyncio.sleep(3600)
        assert follower.status_of(leader).faults == 0


@pytest.mark.virtual
async def test_a_handler_that_fails_ends_its_stream_only() -> None:
    async with World() as world:
        leader, follower = await pair(world)

        async def fail(stream: object) -> None:
            raise Broken("the target is gone")

        follower.mesh.handle("fail", fail, allow=lambda _member, _metadata: None)
        serve_echo(follower)
        beside = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        stream = leader.mesh.open_stream(follower.peer, "fail", metadata={})
        with pytest.raises(Broken, match="the target is gone"):
            await stream.read()
        assert await exchange(beside, b"unharmed") == b"unharmed"


@pytest.mark.virtual
async def test_more_streams_than_there_may_be_are_busy_and_come_free() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)

        streams = []
        with pytest.raises(Busy):
            while True:
                streams.append(leader.mesh.open_stream(follower.peer, "echo", metadata={}))
        assert MAX_STREAMS - 2 <= len(streams) <= MAX_STREAMS
        assert await exchange(streams[-1], b"last") == b"last"
        streams[0].reset(4, "one less")
        await asyncio.sleep(1)
        fresh = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(fresh, b"fits") == b"fits"
