"""Who is away, in a large mesh: told by one, tested by all, refuted by a node that lives."""

import asyncio

from meshd.base.shares import LIVES_OF_ONE, NEWS_CHECKS, NEWS_OF_ONE
from meshd.identity.away import Away
from meshd.peer.hearing import KNOWN_COST
from meshd.peer.interface import PeerState
from meshd.peer.standing import DEGREE
from meshd.wire.news import AwayNews

from tests.sim.gossip import Teller
from tests.sim.loop import run
from tests.sim.scale import FLOOD_SECONDS, measure
from tests.sim.test_peers_many import MANY, mesh_of
from tests.sim.world import World, WorldNode


def _shows(node: WorldNode, other: WorldNode) -> bool:
    status = node.status_of(other)
    return status.present or status.state is PeerState.CONNECTED


def test_a_node_that_falls_silent_is_away_for_all_within_30_s() -> None:
    async def main() -> None:
        async with World() as world:
            nodes = await mesh_of(world, MANY)
            dead = nodes.pop()
            await dead.stop(cut=False)
            await asyncio.sleep(30)
            assert not any(_shows(node, dead) for node in nodes)
            since = {round(node.status_of(dead).since) for node in nodes}
            assert all(asyncio.get_running_loop().time() - at < 30 for at in since)

    run(main())


def test_a_node_that_comes_back_is_there_for_all_within_15_s() -> None:
    async def main() -> None:
        async with World() as world:
            nodes = await mesh_of(world, MANY)
            back = nodes.pop()
            await back.stop()
            await asyncio.sleep(60)
            assert not any(_shows(node, back) for node in nodes)
            back.reborn()
            back.start()
            await asyncio.sleep(15)
            assert all(_shows(node, back) for node in nodes)

    run(main())


def test_a_node_that_was_cut_off_and_lives_refutes_what_was_said() -> None:
    """Its record is the same as before: it has to hear of it, and say so."""

    async def main() -> None:
        async with World() as world:
            nodes = await mesh_of(world, MANY)
            alone, *others = nodes
            cables = [world.cable(alone.name, other.name) for other in others]
            for cable in cables:
                cable.unplug()
            await asyncio.sleep(60)
            assert not any(_shows(other, alone) for other in others)
            assert not any(_shows(alone, other) for other in others)
            for cable in cables:
                cable.plug()
            await asyncio.sleep(60)
            assert all(_shows(other, alone) and _shows(alone, other) for other in others)

    run(main())


def test_who_lives_is_away_for_nobody_whatever_one_member_says() -> None:
    async def main() -> None:
        async with World() as world:
            liar = world.node("liar")
            teller = Teller(liar)
            nodes = [world.node(f"n{number}") for number in range(MANY)]
            for node in (liar, *nodes):
                node.knows(*(other for other in (liar, *nodes) if other is not node))
            for node in (liar, *nodes):
                node.start()
            await asyncio.sleep(30)
            subjects = nodes[:4]
            for subject in subjects:
                said = Away.sign(liar.key, mesh=world.root.mesh, peer=subject.peer, order=(1, 0))
                for stream in teller.streams():
                    await stream.send(AwayNews(said.to_bytes()).encode())
            for _ in range(400):
                await asyncio.sleep(0.1)
                for node in nodes:
                    assert all(_shows(node, subject) for subject in subjects if subject is not node)
            refuted = [nodes[-1].mesh._crowd.lives.order(subject.peer) for subject in subjects]
            assert all(order > (1, 0) for order in refuted), "it had been heard, and was refuted"

    run(main())


def test_a_mesh_of_many_hears_of_everything_and_says_little() -> None:
    """The same with 1000 members: `python -m tests.sim.scale`, docs/scale.md."""
    row = run(measure(100))
    assert max(row.join, row.ban, row.address) <= 15
    assert row.idle < 200
    assert row.flood_checks_near <= NEWS_CHECKS.per_second + (NEWS_CHECKS.burst + 10) / FLOOD_SECONDS
    told = (NEWS_OF_ONE.burst + LIVES_OF_ONE.burst) / FLOOD_SECONDS
    told += NEWS_OF_ONE.per_second + LIVES_OF_ONE.per_second
    assert row.flood_checks <= told * (1 + DEGREE * KNOWN_COST) + 0.1, "each once, and known from the others"
