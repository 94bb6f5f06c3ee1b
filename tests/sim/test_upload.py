"""--max-upload: what a node gives over all links together, on a virtual clock."""

import asyncio

import pytest
from meshd.mux.config import NodeBudget, Priority
from meshd.mux.upload import Upload

from tests.sim.network import Path
from tests.sim.peers import Network

pytestmark = pytest.mark.virtual

MB = 1_000_000
KIB = 1 << 10


def _networks(count: int, rate: float) -> list[Network]:
    budget = NodeBudget(64 << 20, Upload(rate))
    made = [Network(budget=budget) for _ in range(count)]
    for network in made:
        network.follower.keep = False
    return made


@pytest.mark.parametrize("rate", [0.05 * MB, 2.5 * MB, 12.5 * MB])
async def test_three_peers_share_what_the_node_gives(rate: float) -> None:
    networks = _networks(3, rate)
    delays = (0.0, 0.02, 0.1)
    for network, delay in zip(networks, delays, strict=True):
        network.link(Path(rate=100 * MB, delay=delay))
        network.leader.feed(network.leader.open(), bytes(64 * KIB), times=1 << 20)
    await asyncio.sleep(5)
    began = [sum(network.follower.counts.values()) for network in networks]
    await asyncio.sleep(20)
    got = [sum(n.follower.counts.values()) - at for n, at in zip(networks, began, strict=True)]
    assert 0.9 * rate * 20 < sum(got) < 1.03 * rate * 20
    assert min(got) > 0.8 * max(got)
    for network in networks:
        network.close()


async def test_what_a_slow_peer_does_not_take_the_others_get() -> None:
    slow, fast = _networks(2, 4 * MB)
    slow.link(Path(rate=0.5 * MB, delay=0.02))
    fast.link(Path(rate=100 * MB, delay=0.02))
    for network in (slow, fast):
        network.leader.feed(network.leader.open(), bytes(64 * KIB), times=1 << 20)
    await asyncio.sleep(5)
    began = sum(fast.follower.counts.values())
    await asyncio.sleep(10)
    assert sum(fast.follower.counts.values()) - began > 0.9 * 3.4 * MB * 10
    slow.close()
    fast.close()


async def test_pings_and_small_messages_do_not_wait_behind_it() -> None:
    [network] = _networks(1, 0.25 * MB)
    leader = network.leader
    link = network.link(Path(rate=100 * MB, delay=0.01))
    leader.feed(leader.open(), bytes(64 * KIB), times=1 << 20)
    small = leader.open(Priority.INTERACTIVE)
    arrived: list[float] = []
    loop = asyncio.get_running_loop()
    network.follower.on_data = lambda stream, _: arrived.append(loop.time()) if stream == small else None

    async def talk() -> list[float]:
        waits = []
        for _ in range(50):
            await asyncio.sleep(0.2)
            said = loop.time()
            leader.write(small, bytes(200))
            count = len(arrived)
            while len(arrived) == count:  # noqa: ASYNC110 - on a virtual clock
                await asyncio.sleep(0.005)
            waits.append(arrived[-1] - said)
        return waits

    asked = asyncio.ensure_future(talk())
    await leader.ping_for(30, link)
    waits = await asked
    assert max(rtt for _, rtt in leader.rtts) < 0.05
    assert max(waits) < 0.15  # one share of the rate, and the way
    network.close()


async def test_the_other_direction_is_not_held_back() -> None:
    [network] = _networks(1, 0.2 * MB)
    network.leader.keep = False
    network.link(Path(rate=10 * MB, delay=0.02))
    network.follower.feed(network.follower.open(), bytes(64 * KIB), times=1 << 20)
    await asyncio.sleep(10)
    assert sum(network.leader.counts.values()) > 0.8 * 10 * MB * 10
    network.close()
