"""A peer that is gone for long is dialled every few minutes, and still found at once when it is back."""

import asyncio

import pytest
from meshd.peer.dial_schedule import AWAY_SECONDS, RETRY, RETRY_AWAY
from meshd.peer.interface import PeerState

from tests.sim.test_paths import now
from tests.sim.world import World, WorldNode, pair

LONG = 6 * 3600
SOON = 5.0
OTHERS = 4


async def gone(world: World) -> tuple[WorldNode, WorldNode]:
    """One that stays, and one whose process has been gone for six hours."""
    stays, other = await pair(world)
    await other.stop()
    await asyncio.sleep(LONG)
    return stays, other


def pace(node: WorldNode, dials: int, seconds: float) -> float:
    return seconds / (node.dialer.dials - dials)


@pytest.mark.virtual
async def test_the_pace_slows_down_once_it_has_been_gone_for_long() -> None:
    async with World() as world:
        stays, other = await pair(world)
        await other.stop()
        await asyncio.sleep(60)
        dials = stays.dialer.dials
        await asyncio.sleep(AWAY_SECONDS / 2)
        assert pace(stays, dials, AWAY_SECONDS / 2) <= RETRY.most
        await asyncio.sleep(AWAY_SECONDS)
        dials = stays.dialer.dials
        await asyncio.sleep(LONG)
        assert 0.7 * RETRY_AWAY.most <= pace(stays, dials, LONG) <= RETRY_AWAY.most


@pytest.mark.parametrize("how", ["its dial", "mdns", "need", "nothing"])
@pytest.mark.virtual
async def test_it_is_found_when_it_is_back(how: str) -> None:
    async with World() as world:
        stays, other = await gone(world)
        if how != "its dial":
            other.book_blob = None  # it knows nobody, so it has to be dialled
        other.reborn()
        began = now()
        other.start()
        await asyncio.sleep(0.1)
        if how == "mdns":
            stays.mesh.seen_nearby(other.peer)
        elif how == "need":
            stays.mesh.table.demand(other.peer)
        await stays.sees(other, PeerState.CONNECTED, seconds=RETRY_AWAY.most + SOON)
        assert how == "nothing" or now() - began < SOON


@pytest.mark.virtual
async def test_it_is_found_by_what_a_third_member_tells() -> None:
    """It is back, and knows one member alone, which passes its new record on."""
    async with World() as world:
        nodes = [world.node(name) for name in ("stays", "friend", "other")]
        stays, friend, other = nodes
        for node in nodes:
            node.knows(*nodes)
            node.start()
        await stays.sees(other, PeerState.CONNECTED)
        await other.stop()
        await asyncio.sleep(LONG)
        other.book_blob = None
        other.reborn()
        other.book.hint(friend.peer, (friend.place,))
        other.host.shown = other.record(9)
        began = now()
        other.start()
        await stays.sees(other, PeerState.CONNECTED)
        assert now() - began < SOON


@pytest.mark.virtual
async def test_a_node_whose_network_is_back_finds_all_with_the_first() -> None:
    async with World() as world:
        alone = world.node("alone")
        others = [world.node(f"n{number}") for number in range(OTHERS)]
        for node in (alone, *others):
            node.knows(alone, *others)
            node.start()
        cables = [world.cable(alone.name, other.name) for other in others]
        for other in others:
            await alone.sees(other, PeerState.CONNECTED)
        for cable in cables:
            cable.unplug()
        await asyncio.sleep(LONG)
        for cable in cables:
            cable.plug()
        await alone.until(lambda: any(one.paths for one in alone.mesh.peers()), seconds=RETRY_AWAY.most)
        first = now()
        for other in others:
            await alone.sees(other, PeerState.CONNECTED)
        assert now() - first < SOON
