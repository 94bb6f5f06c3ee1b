"""A member tells statements of the past: an older one never undoes a newer one, and ends nobody's news."""

import asyncio

import pytest
from meshd.peer.interface import PeerState
from meshd.wire.news import BanNews, RecordNews

from tests.sim.gossip import Teller
from tests.sim.world import World, WorldNode, pair


async def told_by(world: World) -> tuple[WorldNode, WorldNode, WorldNode, Teller]:
    """Two honest members, the target of all statements, and one whose news are what a test says."""
    one, target = await pair(world)
    hostile = world.node("mallory")
    teller = Teller(hostile)
    hostile.knows(one)
    hostile.start()
    await hostile.sees(one, PeerState.CONNECTED)
    return one, target, hostile, teller


def statements(world: World, target: WorldNode) -> list[bytes]:
    """The root's statements about `target` in their order: banned, readmitted, banned, readmitted."""
    return [world.ban(target, epoch=epoch, lifts=bool(epoch % 2)) for epoch in range(4)]


@pytest.mark.parametrize("newest", [1, 2, 3])
@pytest.mark.virtual
async def test_an_older_ban_or_lift_changes_nothing(newest: int) -> None:
    """An old ban after a lift, an old lift after a ban: told by the news, ten times each."""
    async with World() as world:
        one, target, hostile, teller = await told_by(world)
        said = statements(world, target)[: newest + 1]
        one.node.learn_bans([said[-1]])
        is_out, mark = newest % 2 == 0, world.node("mark")
        await teller.tell(one, [BanNews(old).encode() for old in said[:-1]] * 10)
        await teller.tell(one, [BanNews(world.ban(mark)).encode()])  # heard after all of them
        await one.until(lambda: one.bans.why_node_banned(mark.peer) is not None)
        assert bool(one.bans.why_banned(target.chain)) is is_out
        assert set(one.bans.entries()) == {said[-1], world.ban(mark)}
        assert one.status_of(hostile).state is PeerState.CONNECTED
        if is_out:
            assert one.mesh.member(target.peer) is None
        else:
            await one.sees(target, PeerState.CONNECTED)


@pytest.mark.parametrize("newest", [1, 2, 3])
@pytest.mark.virtual
async def test_a_member_with_an_older_set_of_bans_learns_the_newer_one(newest: int) -> None:
    """A member that was away, or whose home is an old copy: the greeting brings both to the newest."""
    async with World() as world:
        one, old, target = world.node("anna"), world.node("bert"), world.node("carl")
        said = statements(world, target)
        one.node.learn_bans(said[: newest + 1])
        old.node.learn_bans(said[:newest])
        old.knows(one)
        one.start()
        old.start()
        await one.sees(old, PeerState.CONNECTED)
        assert one.bans.entries() == old.bans.entries() == (said[newest],)
        assert bool(one.bans.why_banned(target.chain)) is (newest % 2 == 0)


@pytest.mark.virtual
async def test_older_records_of_a_readmitted_member_do_not_come_back() -> None:
    """Neither the one from before the ban, nor the word that it had left."""
    async with World() as world:
        one, target, hostile, teller = await told_by(world)
        past = [RecordNews(target.record(2, left=True).encode()), RecordNews(target.record(1).encode())]
        one.node.learn_bans([world.ban(target)])
        await one.until(lambda: one.mesh.member(target.peer) is None)
        await teller.tell(one, [record.encode() for record in past])
        target.host.shown = target.record(3)
        one.node.learn_bans([world.ban(target, epoch=1, lifts=True)])
        await one.sees(target, PeerState.CONNECTED)
        await one.until(lambda: getattr(one.book.record(target.peer), "sequence", 0) == 3)
        await teller.tell(one, [record.encode() for record in past] * 10)
        await asyncio.sleep(60)
        known = one.book.record(target.peer)
        assert known is not None and known.sequence == 3
        assert one.status_of(target).state is PeerState.CONNECTED
        assert one.status_of(hostile).state is PeerState.CONNECTED
