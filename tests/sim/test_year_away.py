"""A member that was off for a year comes back by whatever still leads to one node, or waits to be told."""

import asyncio
from collections.abc import Sequence
from ipaddress import ip_network

import pytest
from meshd.identity.revocation import MAX_BANS, ban
from meshd.link.interface import LinkKind
from meshd.peer.dial_schedule import AWAY_SECONDS, RETRY_AWAY
from meshd.peer.interface import PeerState
from meshd.wire.address import Candidate
from meshd.wire.dialable import Here, dialable

from tests.conformance.nodes import fresh_key
from tests.sim.test_clock_jumps import YEAR, Clock
from tests.sim.world import World, WorldNode

FRIENDS = 4
SET_UP_SECONDS = 30
ALONE_SECONDS = 1800


def banned_strangers(world: World, count: int) -> list[bytes]:
    """Bans that the root made in that year."""
    made = (
        ban(
            signer=world.root.root,
            chain=None,
            mesh=world.root.mesh,
            kind="node",
            target=fresh_key().peer.raw,
            issued_at=0,
            epoch=1 + number,
        )
        for number in range(count)
    )
    return [one.encode() for one in made]


async def mesh_of(world: World, *, kinds: Sequence[LinkKind] = (LinkKind.TCP,)) -> list[WorldNode]:
    """A connected mesh; the first node is the one that will be away."""
    nodes = [world.node(f"n{number}", kinds=kinds) for number in range(1 + FRIENDS)]
    for node in nodes:
        node.knows(*nodes)
        node.start()
    for node in nodes:
        for other in nodes:
            if other is not node:
                await node.sees(other, PeerState.CONNECTED)
    return nodes


async def a_year_passes(world: World, nodes: Sequence[WorldNode], *, stay: int, bans: int = 20) -> WorldNode:
    """The first is stopped; all others but `stay` of them get other addresses, a new member comes."""
    away, *friends = nodes
    await away.stop()
    for number, friend in enumerate(friends[stay:]):
        friend.move(f"10.7.0.{number + 1}", sequence=YEAR)
        friend.mesh.record_changed()
    friends[0].node.learn_bans(banned_strangers(world, bans))
    newcomer = world.node("newcomer")
    newcomer.knows(*friends)
    newcomer.book.hint(friends[0].peer, (friends[0].place,))
    newcomer.start()
    for friend in friends:
        await newcomer.sees(friend, PeerState.CONNECTED)
    await asyncio.sleep(SET_UP_SECONDS)
    return newcomer


def wakes_up(world: World, away: WorldNode) -> None:
    """Start it again, at another address: the others do not know it either."""
    del world.places[away.place]
    away.place = away.places[LinkKind.TCP] = Candidate("10.7.0.99", away.place.port)
    world.places[away.place] = away.name
    away.reborn()
    away.start()


async def is_whole_again(away: WorldNode, others: Sequence[WorldNode], *, bans: int) -> None:
    """It is connected with all, new ones too, and knows what they know."""
    for other in others:
        await away.sees(other, PeerState.CONNECTED)
        await other.sees(away, PeerState.CONNECTED)
    assert len(away.bans) == bans
    assert away.bans.digest() == others[0].bans.digest()


@pytest.mark.parametrize(("clock", "bans"), [(0, MAX_BANS), (-50 * YEAR, 20), (30 * YEAR, 20)])
@pytest.mark.virtual
async def test_one_address_that_is_still_valid_is_enough(clock: int, bans: int) -> None:
    """It learns the others' addresses and all bans from that node, whatever its clock says."""
    async with World() as world:
        nodes = await mesh_of(world)
        newcomer = await a_year_passes(world, nodes, stay=1, bans=bans)
        away = nodes[0]
        away.reborn()
        Clock(away).time += clock
        away.start()
        await is_whole_again(away, [*nodes[1:], newcomer], bans=bans)
        offset = away.status_of(nodes[1]).clock_offset
        assert offset is not None and abs(offset) >= abs(clock) - YEAR


@pytest.mark.virtual
async def test_without_any_valid_address_a_relay_is_enough() -> None:
    async with World() as world:
        nodes = await mesh_of(world, kinds=(LinkKind.TCP, LinkKind.RELAY))
        newcomer = await a_year_passes(world, nodes, stay=0)
        wakes_up(world, nodes[0])
        await is_whole_again(nodes[0], [*nodes[1:], newcomer], bans=20)


@pytest.mark.parametrize("how", ["invite", "mdns"])
@pytest.mark.virtual
async def test_without_any_way_it_waits_until_an_address_is_named(how: str) -> None:
    """Return by an invite of its mesh, given at a restart, or by mDNS in the network in which it wakes up."""
    async with World() as world:
        nodes = await mesh_of(world)
        newcomer = await a_year_passes(world, nodes, stay=0)
        away, friend = nodes[0], nodes[2]
        wakes_up(world, away)
        await asyncio.sleep(2 * AWAY_SECONDS)
        dials = away.dialer.dials
        await asyncio.sleep(ALONE_SECONDS)
        assert {status.state for status in away.mesh.peers()} <= {PeerState.KNOWN, PeerState.CONNECTING}
        each = ALONE_SECONDS / (away.dialer.dials - dials) * FRIENDS
        assert 0.5 * RETRY_AWAY.most < each < 2 * RETRY_AWAY.most, "it tries on, at the pace of an idle node"
        if how == "invite":
            await away.stop()
            away.reborn()
            away.book.hint(friend.peer, (friend.place,))
            away.start()
        else:
            here = Here(networks=(ip_network("10.7.0.0/24"),))
            away.host.may_dial = lambda _peer, told, source: dialable(told, source=source, here=here)
            away.book.nearby(friend.peer, (friend.place,))
            away.mesh.seen_nearby(friend.peer)
        await is_whole_again(away, [*nodes[1:], newcomer], bans=20)


@pytest.mark.virtual
async def test_a_member_that_was_banned_meanwhile_is_told() -> None:
    async with World() as world:
        nodes = await mesh_of(world)
        await a_year_passes(world, nodes, stay=2)
        away, friend = nodes[0], nodes[1]
        friend.node.learn_bans([world.ban(away)])
        away.reborn()
        away.start()
        await away.until(lambda: "is banned from this mesh" in away.status_of(friend).says_banned)
