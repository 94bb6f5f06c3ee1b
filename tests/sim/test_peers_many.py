"""A large mesh on a virtual clock: few sessions each, all know who is there, anybody is reached on demand."""

import asyncio

import pytest
from meshd.peer.interface import PeerState
from meshd.peer.presence import DEGREE, Seat, neighbours

from tests.sim.world import World, WorldNode

MANY = 12


async def mesh_of(world: World, count: int) -> list[WorldNode]:
    """Nodes that each know the first one only, started; returns when each knows all and has settled."""
    nodes = [world.node(f"n{number}") for number in range(count)]
    for node in nodes[1:]:
        node.knows(nodes[0])
    for node in nodes:
        node.start()
    for node in nodes:
        await node.until(lambda node=node: len(node.mesh.peers()) == count - 1)  # type: ignore[misc]
    await asyncio.sleep(80)  # sessions that joining took are idle by now
    return nodes


def _connected(node: WorldNode) -> set[object]:
    return {one.peer for one in node.mesh.peers() if one.state is PeerState.CONNECTED}


def _there(node: WorldNode) -> int:
    return sum(one.present or one.state is PeerState.CONNECTED for one in node.mesh.peers())


@pytest.mark.virtual
async def test_a_small_mesh_is_whole() -> None:
    async with World() as world:
        for node in await mesh_of(world, DEGREE + 1):
            assert len(_connected(node)) == DEGREE


@pytest.mark.virtual
async def test_a_large_mesh_keeps_few_sessions_and_knows_who_is_there() -> None:
    async with World() as world:
        nodes = await mesh_of(world, MANY)
        members = {node.peer: Seat(node.chain.place) for node in nodes}
        for node in nodes:
            assert _connected(node) == neighbours(node.peer, members)
            assert _there(node) == MANY - 1
        far = _far(nodes[0], nodes)
        seconds, _ = await nodes[0].mesh.ping(far.peer, 5)
        assert seconds < 5 and far.peer in _connected(nodes[0])
        await asyncio.sleep(190)
        assert far.peer not in _connected(nodes[0]), "nobody needs it any more"


def _far(node: WorldNode, nodes: list[WorldNode]) -> WorldNode:
    return next(one for one in nodes if one is not node and one.peer not in _connected(node))


@pytest.mark.virtual
async def test_who_is_lost_from_here_only_is_there() -> None:
    async with World() as world:
        nodes = await mesh_of(world, MANY)
        far = _far(nodes[0], nodes)
        await nodes[0].mesh.ping(far.peer, 5)
        world.cable(nodes[0].name, far.name).unplug()
        await asyncio.sleep(240)  # the grace time is over, and nobody asks for it any more
        status = nodes[0].status_of(far)
        assert (status.state, status.present) == (PeerState.KNOWN, True), status


@pytest.mark.virtual
async def test_a_node_that_dies_is_gone_for_all_and_the_ring_closes() -> None:
    async with World() as world:
        nodes = await mesh_of(world, MANY)
        dead = nodes.pop()
        await dead.stop(cut=False)
        await asyncio.sleep(75)
        members = {node.peer: Seat(node.chain.place) for node in nodes}
        for node in nodes:
            assert not node.status_of(dead).present
            assert node.status_of(dead).state is not PeerState.CONNECTED
            assert neighbours(node.peer, members) <= _connected(node)
            assert _there(node) == MANY - 2
        dead.reborn()
        dead.start()
        await asyncio.sleep(60)
        for node in nodes:
            assert node.status_of(dead).present or dead.peer in _connected(node)


@pytest.mark.virtual
async def test_a_mesh_that_was_cut_in_two_grows_together() -> None:
    """The cut takes all sessions of one node: it has to find others on its side by trying."""
    async with World() as world:
        nodes = await mesh_of(world, 12)
        lonely = min(nodes, key=lambda node: len(_connected(node)))
        strangers = [one for one in nodes if one is not lonely and one.peer not in _connected(lonely)]
        one_half = [lonely, *strangers[:5]]
        assert len(one_half) == 6
        halves = one_half, [node for node in nodes if node not in one_half]
        cut = [world.cable(one.name, other.name) for one in halves[0] for other in halves[1]]
        for cable in cut:
            cable.unplug()
        await asyncio.sleep(120)
        assert all(_there(node) == 5 for node in nodes)
        for cable in cut:
            cable.plug()
        await asyncio.sleep(240)
        assert all(_there(node) == 11 for node in nodes)
