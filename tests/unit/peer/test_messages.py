"""Whole messages over a stream: order, credit, ends in the middle."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import Rate
from meshd.base.errors import Broken, EndOfStream, RemoteProtocolError
from meshd.peer.messages import MessageStream
from meshd.wire.message import framed

from tests.sim.loop import run
from tests.unit.tunnel.far import streams

pytestmark = pytest.mark.virtual


@given(st.lists(st.binary(max_size=300), max_size=10), st.integers(1, 40))
def test_messages_arrive_whole_and_give_their_credit_back(messages: list[bytes], most: int) -> None:
    async def main() -> None:
        near, far, port, _ = streams(most=most)
        out, back = MessageStream(near), MessageStream(far)
        for message in messages:
            await out.send(message)
        near.write_eof()
        for message in messages:
            assert await back.receive() == message
        with pytest.raises(EndOfStream):
            await back.receive()
        assert port.unread == 0

    run(main())


async def test_an_end_inside_a_message_breaks_the_rules() -> None:
    near, far, _, _ = streams()
    await near.write(framed(b"message")[:-1])
    near.write_eof()
    with pytest.raises(RemoteProtocolError, match="ended inside a message"):
        await MessageStream(far).receive()


async def test_a_reset_is_told_and_a_long_message_refused() -> None:
    near, far, _, _ = streams()
    near.reset(4, "gone")
    with pytest.raises(Broken, match="gone"):
        await MessageStream(far).receive()
    near, far, _, _ = streams()
    await near.write((1 << 20).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="1048576 bytes announced"):
        await MessageStream(far).receive()


async def test_many_messages_wait_for_their_rate_and_leave_the_loop_to_others() -> None:
    loop, came = asyncio.get_running_loop(), 0
    near, far, _, _ = streams()
    out, back = MessageStream(near), MessageStream(far, Rate("messages", 20.0, 200, "lease", "they wait"))

    async def read(count: int) -> None:
        nonlocal came
        for _ in range(count):
            await back.receive()
            came += 1

    for _ in range(500):
        await out.send(b"loaded")
    began = loop.time()
    burst = asyncio.create_task(read(200))
    for _ in range(10):
        await asyncio.sleep(0)
    assert 0 < came <= 10, "one in a turn of the loop"
    await burst
    assert loop.time() == began
    await read(300)
    assert loop.time() - began == pytest.approx(300 / 20)
