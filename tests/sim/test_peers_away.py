"""Who is away, in a large mesh: told by one, tested by all, refuted by a node that lives."""

import asyncio
from dataclasses import replace

import pytest
from meshd.identity.record import Away
from meshd.peer.interface import PeerState
from meshd.wire.news import AwayNews

from tests.sim import scale
from tests.sim.gossip import Teller
from tests.sim.loop import run
from tests.sim.scale import Row, broken, measure
from tests.sim.test_peers_many import MANY, mesh_of
from tests.sim.world import World, WorldNode
from tests.soak import counts


def _shows(node: WorldNode, other: WorldNode) -> bool:
    status = node.status_of(other)
    return status.present or status.state is PeerState.CONNECTED


@pytest.mark.virtual
async def test_a_node_that_falls_silent_is_away_for_all_within_30_s() -> None:
    async with World() as world:
        nodes = await mesh_of(world, MANY)
        dead = nodes.pop()
        await dead.stop(cut=False)
        await asyncio.sleep(30)
        assert not any(_shows(node, dead) for node in nodes)
        since = {round(node.status_of(dead).since) for node in nodes}
        assert all(asyncio.get_running_loop().time() - at < 30 for at in since)


@pytest.mark.virtual
async def test_a_node_that_comes_back_is_there_for_all_within_15_s() -> None:
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


@pytest.mark.virtual
async def test_a_node_that_was_cut_off_and_lives_refutes_what_was_said() -> None:
    """Its record is the same as before: it has to hear of it, and say so."""
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


@pytest.mark.virtual
async def test_who_lives_is_away_for_nobody_whatever_one_member_says() -> None:
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
        refuted = [nodes[-1].mesh.presence.gossip.order(subject.peer) for subject in subjects]
        assert all(order > (1, 0) for order in refuted), "it had been heard, and was refuted"


def test_a_mesh_of_many_hears_of_everything_and_says_little() -> None:
    """The same with 1000 members: `python -m tests.sim.scale`, docs/scale.md."""
    assert broken(run(measure(counts(50, 100)))) == []


HELD = Row(
    10,
    join=15,
    ban=15,
    address=15,
    idle=199,
    flood_checks_near=120,
    flood_checks=0.6,
    flood_bytes=1e4,
    real=1,
)


def test_a_mesh_that_keeps_to_all_bounds_is_held() -> None:
    assert broken(HELD) == []


@pytest.mark.parametrize(
    "worse",
    [
        {"join": 15.1},
        {"ban": 15.1},
        {"address": 15.1},
        {"idle": 200.0},
        {"idle": float("nan")},
        {"flood_checks_near": 121.0},
        {"flood_checks": 2.0},
    ],
    ids=str,
)
def test_a_bound_that_is_broken_ends_the_measurement_with_1(
    worse: dict[str, float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def measured(_count: int) -> Row:
        return replace(HELD, **worse)  # type: ignore[arg-type]

    monkeypatch.setattr(scale, "measure", measured)
    assert scale.main(["--members", "10"]) == 1
    assert "at most" in capsys.readouterr().err
