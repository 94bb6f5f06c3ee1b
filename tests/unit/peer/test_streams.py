"""The asyncio face of a mux stream: waiting, ends, resets, a session that is over."""

import asyncio

import pytest
from meshd.base.errors import Broken, Busy, Closed, EndOfStream, LocalProtocolError, Refused
from meshd.mux.events import Code
from meshd.peer.streams import MeshStream

from tests.unit.tunnel.far import PEER, streams

pytestmark = pytest.mark.virtual


class OverPort:
    """A session that is over and has not broken its streams yet."""

    def write(self, stream_id: int, data: bytes | memoryview) -> int:
        raise Closed("the session is over: the peer broke the rules")

    def write_eof(self, stream_id: int) -> None:
        raise Closed("the session is over")

    def reset(self, stream_id: int, code: int, reason: str) -> None:
        raise Closed("the session is over")

    def consumed(self, stream_id: int, count: int) -> bool:
        raise Closed("the session is over")


def over() -> MeshStream:
    return MeshStream(
        port=OverPort(),
        wake=lambda: None,
        pass_on=lambda _id, _data: False,
        on_done=lambda _id: None,
        stream_id=1,
        peer=PEER,
        service="x",
        metadata={},
    )


async def test_a_session_that_is_over_is_broken_to_its_streams() -> None:
    with pytest.raises(Broken, match="the session is over"):
        await over().write(b"x")
    assert over().try_write(b"x") == 0  # runs in a callback: raises nothing
    for stream, act in (
        (one := over(), one.write_eof),
        (two := over(), lambda: two.consumed(1)),
        (three := over(), lambda: three.reset(4, "x")),
    ):
        act()
        with pytest.raises(Broken):
            await stream.read()


async def test_a_write_waits_for_credit_and_goes_on_where_it_was() -> None:
    near, far, _, _ = streams(window=10)
    writing = asyncio.create_task(near.write(b"0123456789abcdefghij!"))
    got = b""
    await asyncio.sleep(0)
    assert not writing.done()
    while len(got) < 21:
        chunk = bytes(await far.read())
        got += chunk
        far.consumed(len(chunk))
    await writing
    assert got == b"0123456789abcdefghij!"


async def test_what_was_received_is_read_before_the_end() -> None:
    near, far, _, _ = streams()
    await near.write(b"last words")
    near.write_eof()
    near.write_eof()
    assert bytes(await far.read()) == b"last words"
    for _ in range(2):
        with pytest.raises(EndOfStream):
            await far.read()
    with pytest.raises(LocalProtocolError):
        await near.write(b"more")
    assert near.try_write(b"more") == 0


async def test_a_reset_voids_what_is_unread() -> None:
    near, far, port, _ = streams()
    await near.write(b"unread")
    near.reset(Code.CANCELLED, "its user went away")
    near.reset(Code.BROKEN, "twice")
    assert port.resets == [(4, "its user went away")]
    with pytest.raises(Broken, match="the peer reset the stream: its user went away"):
        await far.read()
    with pytest.raises(Broken, match="stream reset: its user"):
        await near.write(b"x")


def test_no_reset_is_sent_once_both_ways_have_ended() -> None:
    near, far, port, _ = streams()
    near.write_eof()
    far.write_eof()
    near.reset(Code.BROKEN, "late")
    assert port.resets == []


@pytest.mark.parametrize("code", [Code.REFUSED, Code.UNKNOWN_SERVICE])
async def test_a_refusal_is_one_before_the_acceptance_only(code: Code) -> None:
    near, _, _, _ = streams(accepted=False)
    waiting = asyncio.create_task(near.accepted())
    await asyncio.sleep(0)
    near.feed_reset(code, "lacks the role `use`")
    with pytest.raises(Refused, match="role `use`"):
        await waiting
    taken, _, _, _ = streams()
    await taken.accepted()
    taken.feed_reset(code, "lacks the role `use`")
    with pytest.raises(Broken, match="reset the stream"):
        await taken.read()


async def test_the_first_error_stays() -> None:
    near, _, _, _ = streams()
    near.break_with(Broken("first"))
    near.break_with(Broken("second"))
    with pytest.raises(Broken, match="first"):
        await near.read()


async def test_a_taker_gets_what_comes_until_it_says_no_and_order_is_kept() -> None:
    near, far, _, _ = streams(most=1)
    taken: list[bytes] = []

    def take(data: bytes | memoryview) -> bool:
        if len(taken) == 2:
            return False
        taken.append(bytes(data))
        return True

    far.divert(take)
    await near.write(b"abcd")
    assert taken == [b"a", b"b"]
    taken.clear()
    await near.write(b"e")  # behind what waits to be read
    assert [bytes(await far.read()) for _ in range(3)] == [b"c", b"d", b"e"]
    await near.write(b"f")
    assert taken == [b"f"]
    far.divert(None)
    await near.write(b"g")
    assert bytes(await far.read()) == b"g"


async def test_what_waits_to_be_read_is_its_own() -> None:
    _, far, _, _ = streams()
    buffer = bytearray(b"abcd")
    far.feed(memoryview(buffer)[1:3])
    buffer[:] = b"wxyz"  # the link uses it again
    assert await far.read() == b"bc"


async def test_two_readers_are_one_too_many() -> None:
    near, _, _, _ = streams()
    first = asyncio.create_task(near.read())
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await near.read()
    first.cancel()
    await asyncio.wait([first])
    second = asyncio.create_task(near.read())  # a cancelled one is no reader
    await asyncio.sleep(0)
    near.feed(b"x")
    assert await second == b"x"
