"""A peer whose process has died does not use up the grace; one that only cannot be heard does."""

import asyncio

import pytest
from meshd.base.errors import Broken, CutOff, UserError
from meshd.link.interface import LinkKind
from meshd.peer.interface import PeerState

from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, pair

GRACE = 120


@pytest.mark.parametrize("kinds", [(LinkKind.TCP,), (LinkKind.TCP, LinkKind.QUIC)])
@pytest.mark.virtual
async def test_streams_to_a_process_that_was_killed_break_within_five_seconds(
    kinds: tuple[LinkKind, ...],
) -> None:
    """Test that it says nothing that UDP gets no answer from its host."""
    async with World() as world:
        leader, follower = await pair(world, grace=GRACE, kinds=kinds)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"before") == b"before"
        began = asyncio.get_running_loop().time()
        await follower.stop()
        with pytest.raises(Broken, match="its process has ended"):
            await stream.read()
        assert asyncio.get_running_loop().time() - began < 5
        assert leader.status_of(follower).state in (PeerState.LOST, PeerState.CONNECTING)
        assert "its process has ended" in leader.status_of(follower).gone
        follower.reborn()
        serve_echo(follower)
        follower.start()
        back = await leader.sees(follower, PeerState.CONNECTED)
        assert not back.gone
        again = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(again, b"after") == b"after"


@pytest.mark.parametrize("how", ["silent", "unplugged"])
@pytest.mark.virtual
async def test_a_machine_that_cannot_be_heard_keeps_the_grace(how: str) -> None:
    """`unplugged`: somebody on the path resets the connection, and lets nothing through afterwards."""
    async with World() as world:
        leader, follower = await pair(world, grace=GRACE)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"before") == b"before"
        cable = world.cable("anna", "bert")
        if how == "silent":
            await follower.stop(cut=False)
        else:
            cable.cut(CutOff)
            cable.unplugged = True
        await leader.sees(follower, PeerState.SUSPENDED)
        await asyncio.sleep(GRACE / 2)
        assert leader.status_of(follower).state is PeerState.SUSPENDED
        if how == "silent":
            with pytest.raises(Broken, match=f"no link for {GRACE} s"):
                await stream.read()
        else:
            cable.plug()
            assert await exchange(stream, b"after") == b"after"


@pytest.mark.virtual
async def test_a_reset_that_somebody_forged_is_a_pause() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=GRACE)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        for _ in range(5):
            assert await exchange(stream, b"still there") == b"still there"
            world.cable("anna", "bert").cut(CutOff)
        assert await exchange(stream, b"still there") == b"still there"


@pytest.mark.virtual
async def test_a_dead_node_can_be_forgotten_and_gossip_does_not_bring_it_back() -> None:
    """The other member still has its record, and tells it each time that the two compare what they know."""
    async with World() as world:
        one, gone, other = (world.node(name) for name in ("anna", "bert", "carl"))
        one.knows(gone, other)
        gone.knows(one, other)
        other.knows(one, gone)
        for node in (one, gone, other):
            node.start()
        for node in (gone, other):
            await one.sees(node, PeerState.CONNECTED)
        with pytest.raises(UserError, match="is connected"):
            one.mesh.forget(gone.peer)
        await gone.stop()
        await one.until(lambda: one.status_of(gone).state in (PeerState.LOST, PeerState.CONNECTING))
        one.mesh.forget(gone.peer)
        for again in (False, True):
            if again:  # a new session, in which all is told anew
                await one.stop()
                one.reborn()
                one.start()
            await one.sees(other, PeerState.CONNECTED)
            await asyncio.sleep(600)
            assert {status.peer for status in one.mesh.peers()} == {other.peer}
            assert other.book.record(gone.peer) is not None
        gone.reborn()
        gone.start()
        await one.sees(gone, PeerState.CONNECTED)
        assert one.book.record(gone.peer) is not None


@pytest.mark.virtual
async def test_a_forgotten_node_that_was_only_cut_off_comes_back_with_the_record_that_it_had() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=GRACE)
        cable = world.cable("anna", "bert")
        cable.cut(CutOff)
        cable.unplugged = True
        await leader.sees(follower, PeerState.LOST, seconds=2 * GRACE)
        leader.mesh.forget(follower.peer)
        assert leader.mesh.peers() == [] and leader.book.record(follower.peer) is None
        cable.plug()
        await leader.sees(follower, PeerState.CONNECTED, seconds=600)
        assert leader.book.record(follower.peer) is not None
