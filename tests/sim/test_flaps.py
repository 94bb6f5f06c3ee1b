"""Links that come and go, nodes that sleep, addresses that change: connected, once, and nothing grows."""

import asyncio
import gc
import tracemalloc

import pytest
from meshd.base.tasks import CLOCK_LOOK_SECONDS, SLEPT_LEAST, watch_sleep
from meshd.link.interface import LinkKind
from meshd.peer.interface import PeerState

from tests.sim.echo import exchange, serve_echo
from tests.sim.loop import VirtualLoop
from tests.sim.test_paths import Pair, begin, carried_by, carrier, kinds, now
from tests.sim.world import World, WorldNode, apart

TCP, WEBRTC, RELAY = LinkKind.TCP, LinkKind.WEBRTC, LinkKind.RELAY
MOST_GROWTH = 64 << 10  # bytes of the whole process over 40 flaps


async def heartbeat(node: WorldNode, other: WorldNode) -> None:
    """Until one has just come: the earliest that silence can be noticed is now the furthest away."""
    streams = node.mesh.table[other.peer].streams
    assert streams is not None
    last = streams.session.status().links[0].confirmed_at
    for _ in range(500):
        if streams.session.status().links[0].confirmed_at != last:
            return
        await asyncio.sleep(0.01)
    raise TimeoutError


async def connected(pair: Pair, *, seconds: float = 60) -> None:
    for node, other in (pair, pair[::-1]):
        await node.sees(other, PeerState.CONNECTED, seconds=seconds)


@pytest.mark.parametrize("what", ["cut", "stall", "unplug"])
@pytest.mark.virtual
async def test_50_flaps_end_connected_and_nothing_grows(what: str) -> None:
    async with World() as world:
        pair = apart(world, kinds=(TCP, RELAY, WEBRTC))
        begin(pair)
        leader, follower = pair
        await connected(pair)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        seen: list[tuple[int, int]] = []
        tracemalloc.start()
        try:
            for flap in range(50):
                for kind in (TCP, RELAY, WEBRTC):
                    cable = world.cable("anna", "bert", kind)
                    if what == "cut":
                        cable.cut()
                    elif what == "stall":
                        cable.stall()
                        cable.ups.clear()
                        cable.downs.clear()
                    else:
                        cable.unplug()
                await asyncio.sleep(3)
                for kind in (TCP, RELAY, WEBRTC):
                    world.cable("anna", "bert", kind).plug()
                await connected(pair)
                assert await exchange(stream, b"%04d" % flap * 1000) == b"%04d" % flap * 1000
                await asyncio.sleep(20)
                if flap in (9, 49):
                    gc.collect()
                    seen.append((tracemalloc.get_traced_memory()[0], len(asyncio.all_tasks())))
        finally:
            tracemalloc.stop()
        assert seen[1][0] - seen[0][0] < MOST_GROWTH, seen
        assert seen[1][1] <= seen[0][1]
        for node, other in (pair, pair[::-1]):
            assert len(node.mesh.peers()) == 1
            assert len(node.status_of(other).paths) <= 3
            assert node.status_of(other).state is PeerState.CONNECTED
        await asyncio.sleep(400)
        assert kinds(leader, follower) == kinds(follower, leader) == [TCP]


@pytest.mark.virtual
async def test_a_node_that_slept_tests_its_links_and_dials_at_once() -> None:
    async with World() as world:
        leader, follower = pair = apart(world)
        begin(pair)
        for sleeper, other in ((leader, follower), (follower, leader)):
            await connected(pair)
            await asyncio.sleep(30)
            stream = sleeper.mesh.open_stream(other.peer, "echo", metadata={})
            assert await exchange(stream, b"good night") == b"good night"
            cable = world.cable("anna", "bert")
            await heartbeat(sleeper, other)
            cable.stall()  # what is far away has long forgotten this connection
            cable.ups.clear()
            cable.downs.clear()
            sleeper.boot_ahead += 1800
            since = now()
            assert await exchange(stream, b"good morning") == b"good morning"
            assert now() - since < CLOCK_LOOK_SECONDS + 0.7, sleeper.name
            assert len(sleeper.mesh.peers()) == len(other.mesh.peers()) == 1
            await asyncio.sleep(10)
            assert kinds(leader, follower) == kinds(follower, leader) == [TCP]


@pytest.mark.virtual
async def test_a_process_that_was_stopped_goes_on_over_the_link_that_still_answers() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    async with World() as world:
        leader, follower = pair = apart(world)
        begin(pair)
        await connected(pair)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        for seconds in (3, 10, 50, 3600):
            await asyncio.sleep(20)
            loop.stand_still(seconds)  # SIGSTOP, SIGCONT
            assert await exchange(stream, b"hello") == b"hello"
            await asyncio.sleep(10)
            for node, other in (pair, pair[::-1]):
                assert len(node.mesh.peers()) == 1
                assert len(node.status_of(other).paths) == 1
                assert node.status_of(other).resumes == 0


@pytest.mark.virtual
async def test_sleep_is_told_by_either_clock_and_a_busy_machine_does_not_count() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    told: list[float] = []
    ahead = 0.0
    task = loop.create_task(watch_sleep(told.append, boot=lambda: loop.time() + ahead))
    await asyncio.sleep(10)
    ahead += SLEPT_LEAST - 0.1
    await asyncio.sleep(10)
    loop.stand_still(SLEPT_LEAST - 0.1)
    await asyncio.sleep(10)
    assert told == []
    ahead += 600
    await asyncio.sleep(3)
    assert told == [pytest.approx(600)]
    loop.stand_still(30)
    await asyncio.sleep(3)
    assert told[1:] == [pytest.approx(30, abs=CLOCK_LOOK_SECONDS)]
    await asyncio.sleep(100)
    assert len(told) == 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("mover", [0, 1])
@pytest.mark.virtual
async def test_a_node_whose_address_changes_is_the_same_peer_and_goes_on(mover: int) -> None:
    async with World() as world:
        pair = apart(world, kinds=(TCP, RELAY))
        begin(pair)
        await carried_by(pair, TCP, seconds=5)
        moved, other = pair[mover], pair[1 - mover]
        stream = other.mesh.open_stream(moved.peer, "echo", metadata={})
        assert await exchange(stream, b"here") == b"here"
        for number in range(1, 6):
            await asyncio.sleep(100)
            cable = world.cable("anna", "bert")
            await heartbeat(moved, other)
            cable.stall()  # the old address is dead: nobody says so
            cable.ups.clear()
            cable.downs.clear()
            moved.move(f"10.0.{number}.1", sequence=100 + number)
            moved.mesh.addresses_changed()
            moved.mesh.record_changed()
            since = now()
            assert await exchange(stream, b"there") == b"there"
            assert now() - since < 1
            await carried_by(pair, TCP, seconds=60)
            await asyncio.sleep(5)
            for node, far in (pair, pair[::-1]):
                assert len(node.mesh.peers()) == 1
                assert node.status_of(far).state is PeerState.CONNECTED
            known = other.book.record(moved.peer)
            assert known is not None and known.candidates == (moved.place,)


@pytest.mark.virtual
async def test_an_address_change_that_harms_nothing_changes_nothing() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(TCP, RELAY, WEBRTC))
        begin(pair)
        await carried_by(pair, TCP, seconds=5)
        await asyncio.sleep(60)
        links = [carrier(node, other) for node, other in (pair, pair[::-1])]
        for _ in range(20):
            leader.mesh.addresses_changed()
            follower.mesh.addresses_changed()
            await asyncio.sleep(7)
        after = [carrier(node, other) for node, other in (pair, pair[::-1])]
        assert [one and one.link for one in after] == [one and one.link for one in links]
        assert kinds(leader, follower) == [TCP]
        assert leader.dialers[WEBRTC].dials <= 1


@pytest.mark.virtual
async def test_serving_goes_on_beside_all_of_it() -> None:
    async with World() as world:
        leader, follower = pair = apart(world)
        begin(pair)
        serve_echo(follower)
        await connected(pair)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        for _ in range(30):
            follower.boot_ahead += 10
            leader.boot_ahead += 10
            assert await exchange(stream, b"x" * 50_000) == b"x" * 50_000
            await asyncio.sleep(2.5)
        await asyncio.sleep(5)
        assert kinds(leader, follower) == [TCP]
