"""Memory under a reader that never reads: the window in force, and not a byte more."""

import asyncio

import pytest
from meshd.mux.config import MuxConfig

from tests.sim.network import Path
from tests.sim.peers import Network

KIB = 1 << 10


@pytest.mark.virtual
async def test_a_reader_that_never_reads_costs_one_window() -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    leader.keep = follower.keep = follower.reads = False
    network.link(Path(rate=100e6, delay=0.01))
    stream = leader.open()
    leader.feed(stream, bytes(64 * KIB), times=16 * 1024)  # 1 GiB
    await asyncio.sleep(60)
    window = MuxConfig().stream_window
    assert follower.counts[stream] == window
    assert leader.most_buffered <= window
    assert follower.most_buffered <= window
    network.close()


@pytest.mark.virtual
async def test_a_reader_that_stops_costs_the_window_in_force() -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    leader.keep = follower.keep = False
    network.link(Path(rate=100e6, delay=0.01))
    stream = leader.open()
    leader.feed(stream, bytes(64 * KIB), times=16 * 1024)
    await asyncio.sleep(3)
    follower.reads = False
    leader.most_buffered = follower.most_buffered = 0
    await asyncio.sleep(60)
    status = follower.session.status()
    assert status.receive_buffered <= status.streams[0].window <= MuxConfig().max_stream_window
    assert status.streams[0].window > MuxConfig().stream_window
    assert leader.most_buffered <= status.streams[0].window
    network.close()


@pytest.mark.parametrize("streams", [100, 300])
@pytest.mark.virtual
async def test_many_readers_that_never_read_cost_one_session_window(streams: int) -> None:
    network = Network()
    leader, follower = network.leader, network.follower
    leader.keep = follower.keep = follower.reads = False
    network.link(Path(rate=100e6, delay=0.01))
    for _ in range(streams):
        leader.feed(leader.open(), bytes(64 * KIB), times=1024)
    await asyncio.sleep(60)
    window = MuxConfig().session_window
    assert follower.session.status().receive_buffered == window
    assert leader.most_buffered <= window
    assert follower.most_buffered <= window
    network.close()
