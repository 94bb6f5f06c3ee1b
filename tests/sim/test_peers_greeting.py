"""Sessions agreed through the real connection code while links are cut in the middle of their greeting."""

import asyncio

import pytest
from meshd.base.errors import Broken
from meshd.peer.interface import PeerState

from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, WorldNode, pair


def session_of(node: WorldNode, other: WorldNode) -> bytes:
    return node.mesh.table[other.peer].session_id


@pytest.mark.parametrize("dialler", ["leader", "follower"])
@pytest.mark.virtual
async def test_a_first_link_cut_after_any_byte(dialler: str) -> None:
    """Among them: the answer that names the session is lost, and Go is lost."""
    reached = 0
    for count in range(1, 4000, 41):
        async with World() as world:
            one, other = world.node("anna"), world.node("bert")
            leader, follower = (one, other) if one.peer > other.peer else (other, one)
            near, far = (leader, follower) if dialler == "leader" else (follower, leader)
            near.knows(far)
            serve_echo(far)
            cable = world.cable("anna", "bert")
            cable.due.append(count)
            far.start()
            near.start()
            await near.sees(far, PeerState.CONNECTED)
            await far.sees(near, PeerState.CONNECTED)
            await asyncio.sleep(1)
            reached += cable.cuts
            await near.sees(far, PeerState.CONNECTED)
            assert session_of(near, far) == session_of(far, near) != b""
            stream = near.mesh.open_stream(far.peer, "echo", metadata={})
            assert await exchange(stream, b"hello" * 9000) == b"hello" * 9000
    assert reached > 60


@pytest.mark.virtual
async def test_a_resumed_link_cut_after_any_byte_keeps_the_session() -> None:
    for count in range(1, 4000, 41):
        async with World() as world:
            leader, follower = await pair(world)
            serve_echo(follower)
            before = session_of(leader, follower)
            stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
            assert await exchange(stream, b"before") == b"before"
            cable = world.cable("anna", "bert")
            cable.cut()
            cable.due.extend([count, count])
            assert await exchange(stream, b"after" * 3000) == b"after" * 3000
            await asyncio.sleep(1)
            assert session_of(leader, follower) == session_of(follower, leader) == before


@pytest.mark.virtual
async def test_a_session_that_no_link_ever_carried_ends_with_its_grace() -> None:
    """The follower answers and settles; the link is lost before Go, and the leader is never seen again."""
    settled = 0
    for count in range(1, 4000, 97):
        async with World() as world:
            one, other = world.node("anna", grace=10), world.node("bert", grace=10)
            leader, follower = (one, other) if one.peer > other.peer else (other, one)
            leader.knows(follower)
            cable = world.cable("anna", "bert")
            cable.due.append(count)
            cable.stays_out = True
            follower.start()
            leader.start()
            await asyncio.sleep(1)
            if not cable.cuts:
                break  # everything of a greeting is shorter
            if follower.mesh.peers():
                settled += session_of(follower, leader) != b""
            await asyncio.sleep(12)
            for node, far in ((leader, follower), (follower, leader)):
                if node.mesh.peers():
                    assert session_of(node, far) == b""
                    with pytest.raises(Broken):
                        node.mesh.open_stream(far.peer, "echo", metadata={})
    assert settled


@pytest.mark.virtual
async def test_a_ban_that_comes_during_the_last_flight_counts() -> None:
    async with World() as world:
        one, other = world.node("anna"), world.node("bert")
        leader, follower = (one, other) if one.peer > other.peer else (other, one)
        leader.knows(follower)
        cable = world.cable("anna", "bert")
        follower.start()
        leader.start()
        for _ in range(1000):
            await asyncio.sleep(0)
            if follower.mesh.peers() and session_of(follower, leader):
                break
        assert follower.status_of(leader).paths == ()  # it waits for Go
        cable.stall()
        follower.bans.merge([world.ban(leader)])
        cable.flow()
        await asyncio.sleep(1)
        assert follower.status_of(leader).paths == ()
        assert "banned" in follower.status_of(leader).last_error
