"""--max-upload in whole nodes: what waits for the limit goes when its time has come; nothing else waits."""

import asyncio

import pytest
from meshd.base.errors import EndOfStream
from meshd.mux.upload import Upload
from meshd.peer.interface import PeerState, Stream

from tests.sim.world import World

RATE = 250_000.0
SIZE = 2_500_000
ANYBODY = lambda _member, _metadata: None  # noqa: E731


@pytest.mark.parametrize("limited", [True, False])
@pytest.mark.virtual
async def test_a_stream_takes_the_time_that_the_limit_wants(limited: bool) -> None:
    async with World() as world:
        loop = asyncio.get_running_loop()
        anna, bert = world.node("anna"), world.node("bert")
        if limited:
            anna.node.budget.upload = Upload(RATE)
        anna.knows(bert)
        bert.knows(anna)
        for node in (anna, bert):
            node.start()
        await anna.sees(bert, PeerState.CONNECTED)
        done: asyncio.Future[int] = loop.create_future()

        async def collect(stream: Stream) -> None:
            count = 0
            try:
                while True:
                    chunk = await stream.read()
                    count += len(chunk)
                    stream.consumed(len(chunk))
            except EndOfStream:
                done.set_result(count)
                stream.write_eof()

        bert.mesh.handle("sink", collect, allow=ANYBODY)
        began = loop.time()
        stream = anna.mesh.open_stream(bert.peer, "sink", metadata={}, bulk=True)
        for _ in range(SIZE // 50_000):
            await stream.write(bytes(50_000))
        pinged = (await anna.mesh.ping(bert.peer, 5.0))[0]
        stream.write_eof()
        assert await done == SIZE
        took = loop.time() - began
        assert pinged < 0.1
        if limited:
            assert 0.9 * SIZE / RATE < took < 1.1 * SIZE / RATE
        else:
            assert took < 1.0


@pytest.mark.virtual
async def test_a_message_on_an_idle_link_goes_when_its_time_has_come() -> None:
    """Nothing comes from the peer meanwhile that would make this node look at the link."""
    async with World() as world:
        loop = asyncio.get_running_loop()
        anna, bert = world.node("anna"), world.node("bert")
        upload = anna.node.budget.upload = Upload(RATE)
        anna.knows(bert)
        for node in (anna, bert):
            node.start()
        await anna.sees(bert, PeerState.CONNECTED)
        arrived: asyncio.Future[float] = loop.create_future()

        async def collect(stream: Stream) -> None:
            await stream.read()
            arrived.set_result(loop.time())
            stream.write_eof()

        bert.mesh.handle("sink", collect, allow=ANYBODY)
        stream = anna.mesh.open_stream(bert.peer, "sink", metadata={})
        await stream.accepted()
        await asyncio.sleep(2.0)
        upload.spend_control(100_000, loop.time())  # 50,000 too many
        began = loop.time()
        await stream.write(bytes(1000))
        assert 0.19 < await arrived - began < 0.25
        stream.write_eof()
