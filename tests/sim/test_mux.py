"""Durable sessions over networks that misbehave: what users would feel, on a virtual clock."""

import asyncio
import random

import pytest
from meshd.mux.config import MuxConfig, Priority
from meshd.mux.events import LinkDead, SessionLost

from tests.sim.network import Path
from tests.sim.peers import Network

pytestmark = pytest.mark.virtual

MB = 1_000_000
KIB = 1 << 10


async def until(done: asyncio.Event, seconds: float) -> None:
    """Wait, but not for ever."""
    async with asyncio.timeout(seconds):
        await done.wait()


@pytest.mark.parametrize(("rate", "delay"), [(MB, 0.0), (MB, 0.01), (MB, 0.05), (4 * MB, 0.02)])
async def test_a_ping_beside_bulk_takes_less_than_100_ms_more(rate: float, delay: float) -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    follower.keep = False
    link = network.link(Path(rate=rate, delay=delay, buffer=8 << 20))
    stream = leader.open()
    leader.feed(stream, bytes(64 * KIB), times=1 << 20)
    await leader.ping_for(40, link)
    assert len(leader.rtts) > 200
    assert max(rtt for _, rtt in leader.rtts) - 2 * delay < 0.1
    assert follower.counts[stream] > 0.95 * rate * 40
    network.close()


@pytest.mark.parametrize(("rate", "delay"), [(MB, 0.0), (MB, 0.05), (4 * MB, 0.02)])
async def test_bulk_in_both_directions_shares_the_path(rate: float, delay: float) -> None:
    """A ping meets a queue each way, and so do acknowledgements; neither direction starves."""

    network = Network()
    leader, follower = network.leader, network.follower
    leader.keep = follower.keep = False
    link = network.link(Path(rate=rate, delay=delay, buffer=8 << 20))
    there, back = leader.open(), follower.open()
    leader.feed(there, bytes(64 * KIB), times=1 << 20)
    follower.feed(back, bytes(64 * KIB), times=1 << 20)
    await asyncio.sleep(5)
    await leader.ping_for(35, link)
    added = sorted(rtt - 2 * delay for _, rtt in leader.rtts)
    assert added[len(added) // 2] < 0.125  # 50 ms each way, and one round in eight a quarter more
    assert added[-1] < 0.3
    assert follower.counts[there] > 0.55 * rate * 40
    assert leader.counts[back] > 0.55 * rate * 40
    network.close()


@pytest.mark.parametrize(
    ("rate", "delay"), [(0.1 * MB, 0.05), (10 * MB, 0.05), (100 * MB, 0.05), (200 * MB, 0.0005)]
)
async def test_bulk_fills_the_path(rate: float, delay: float) -> None:
    network = Network()
    network.follower.keep = False
    network.link(Path(rate=rate, delay=delay, segment=int(max(1500, rate / 5000))))
    stream = network.leader.open()
    network.leader.feed(stream, bytes(256 * KIB), times=1 << 20)
    await asyncio.sleep(4)
    started = network.follower.counts[stream]
    await asyncio.sleep(6)
    within_window = MuxConfig().max_stream_window / (2 * delay)
    assert network.follower.counts[stream] - started > 0.85 * min(rate, within_window) * 6
    network.close()


async def test_a_path_without_a_limit_is_not_limited_by_us() -> None:
    network = Network()
    network.follower.keep = False
    network.link(Path(rate=1000 * MB, delay=0.0001, segment=256 * KIB))
    stream = network.leader.open()
    network.leader.feed(stream, bytes(256 * KIB), times=1 << 20)
    await asyncio.sleep(0.5)
    started = network.follower.counts[stream]
    await asyncio.sleep(0.5)
    assert network.follower.counts[stream] - started > 0.5 * 500 * MB
    network.close()


async def test_a_path_that_gets_slower_is_noticed() -> None:
    network = Network()
    network.follower.keep = False
    path = Path(rate=10 * MB, delay=0.01, buffer=8 << 20)
    link = network.link(path)
    network.leader.feed(network.leader.open(), bytes(64 * KIB), times=1 << 20)
    await asyncio.sleep(5)
    path.rate = MB
    await asyncio.sleep(25)
    network.leader.rtts.clear()
    await network.leader.ping_for(20, link)
    assert max(rtt for _, rtt in network.leader.rtts) < 0.02 + 0.1
    network.close()


async def test_questions_beside_bulk_are_answered_quickly() -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    follower.keep = leader.keep = False
    network.link(Path(rate=MB, delay=0.005, buffer=8 << 20))
    leader.feed(leader.open(Priority.BULK), bytes(64 * KIB), times=1 << 20)
    questions = leader.open(Priority.INTERACTIVE)
    answered = asyncio.Event()

    def answer(stream_id: int, data: bytes) -> None:
        if stream_id == questions:
            follower.write(stream_id, data)

    def hear(stream_id: int, data: bytes) -> None:
        answered.set()

    follower.on_data = answer
    leader.on_data = hear
    await asyncio.sleep(2)
    loop = asyncio.get_running_loop()
    for _ in range(50):
        asked = loop.time()
        leader.write(questions, b"q" * 100)
        await until(answered, 5)
        answered.clear()
        assert loop.time() - asked < 0.01 + 0.1
    network.close()


async def test_thirty_seconds_without_any_link_are_a_pause() -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    text = random.Random(1).randbytes(3 * MB)
    link = network.link(Path(rate=MB, delay=0.02))
    stream = leader.open()
    leader.feed(stream, text, eof=True)
    await asyncio.sleep(1)
    network.cut(link)
    await asyncio.sleep(30)
    assert not follower.ended(stream)
    network.link(Path(rate=MB, delay=0.02))
    await asyncio.sleep(4)
    assert follower.ended(stream)
    assert follower.received[stream] == text
    network.close()


@pytest.mark.parametrize("direction", [0, 1])
async def test_one_silent_direction_is_found_by_both_within_five_seconds(direction: int) -> None:
    network = Network()
    link = network.link(Path(delay=0.02))
    await asyncio.sleep(10.3)
    network.links[link][direction].silent = True
    began = asyncio.get_running_loop().time()
    await asyncio.sleep(5)
    for peer in (network.leader, network.follower):
        deaths = [at for at, event in peer.events if isinstance(event, LinkDead) and event.link_id == link]
        assert len(deaths) == 1
        assert deaths[0] - began < 5
    network.close()


async def test_a_silent_link_is_replaced_by_the_other_one() -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    text = random.Random(2).randbytes(2 * MB)
    first = network.link(Path(rate=MB, delay=0.01))
    second = network.link(Path(rate=MB, delay=0.03))
    stream = leader.open()
    leader.feed(stream, text, eof=True)
    await asyncio.sleep(0.5)
    for pipe in network.links[first]:
        pipe.silent = True
    await asyncio.sleep(9)
    assert leader.session.data_link == follower.session.data_link == second
    assert follower.received[stream] == text
    network.close()


async def test_a_stall_of_three_seconds_costs_no_link() -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    text = random.Random(3).randbytes(2 * MB)
    link = network.link(Path(rate=MB, delay=0.01))
    stream = leader.open()
    leader.feed(stream, text, eof=True)
    await asyncio.sleep(0.7)
    for pipe in network.links[link]:
        pipe.stalled = True
    await asyncio.sleep(3)
    for pipe in network.links[link]:
        pipe.resume()
    await asyncio.sleep(4)
    assert follower.received[stream] == text
    assert not [event for _, event in leader.events + follower.events if isinstance(event, LinkDead)]
    network.close()


async def test_an_idle_link_lives_and_says_little() -> None:
    network = Network()
    link = network.link(Path(delay=0.02))
    await asyncio.sleep(600)
    status = network.leader.session.status().links[0]
    assert status.rtt == pytest.approx(0.04)
    assert status.sent < 600 / 1.5 * 80
    assert link in network.links
    assert not [e for _, e in network.leader.events if isinstance(e, LinkDead | SessionLost)]
    network.close()


@pytest.mark.parametrize("seed", range(6))
async def test_cut_after_every_few_kib(seed: int) -> None:
    """Streams in both directions; every link breaks after 1 to 64 KiB, a new one comes soon."""

    rng = random.Random(seed)
    config = MuxConfig(grace=30)
    network = Network(config)
    leader, follower = network.leader, network.follower
    texts = {}
    for opener in (leader, follower):
        for priority in Priority:
            stream = opener.open(priority)
            texts[stream] = rng.randbytes(rng.randrange(1, 600_000))
            opener.feed(stream, texts[stream], eof=True)
    cuts = 0
    while not all((follower if stream % 2 == 0 else leader).ended(stream) for stream in texts):
        link = network.link(Path(rate=rng.uniform(1, 50) * MB, delay=rng.uniform(0, 0.05)))
        there, here = network.links[link]
        limit = rng.randrange(KIB, 64 * KIB)
        while min(there.passed, here.passed) < limit and max(there.passed, here.passed) < 64 * KIB:
            before = there.passed + here.passed
            await asyncio.sleep(rng.uniform(0.001, 0.02))
            if there.passed + here.passed == before and there.passed:
                break
        network.cut(link)
        cuts += 1
        assert cuts < 5000
        if rng.random() < 0.05:
            await asyncio.sleep(rng.uniform(0, 29))
    for stream, text in texts.items():
        assert (follower if stream % 2 == 0 else leader).received[stream] == text
    assert cuts > 20
    network.close()


async def test_several_links_are_switched_all_the_time() -> None:
    rng = random.Random(7)
    network = Network()
    leader, follower = network.leader, network.follower
    text = rng.randbytes(8 * MB)
    links = [network.link(Path(rate=rng.uniform(1, 8) * MB, delay=delay)) for delay in (0.001, 0.02, 0.1)]
    there = leader.open()
    leader.feed(there, text, eof=True)
    back = follower.open()
    follower.feed(back, text[::-1], eof=True)
    loop = asyncio.get_running_loop()
    while not (follower.ended(there) and leader.ended(back)):
        await asyncio.sleep(rng.uniform(0.01, 0.5))
        leader._take(leader.session.switch_to(rng.choice(links), loop.time()))
        leader.pump()
        assert loop.time() < 1000 + 120
    assert follower.received[there] == text
    assert leader.received[back] == text[::-1]
    network.close()
