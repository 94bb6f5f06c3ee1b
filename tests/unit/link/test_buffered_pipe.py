"""Test what all pipes do alike, over an engine that does nothing by itself."""

import asyncio
from collections.abc import Sequence

import pytest
from meshd.base.errors import Broken, Busy, Closed, EndOfStream, LocalProtocolError, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.link.buffered_pipe import MAX_SEND_BYTES, BufferedPipe

from tests.conformance.run import ticks


class StubPipe(BufferedPipe):
    """Sends into a list; full when it is told so."""

    _breath_bytes = 1000
    _code = "stub"

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[bytes] = []
        self.came: list[bytes] = []
        self.fills = False
        self.hears_goodbye = asyncio.Event()
        self.done: list[str] = []

    def comes(self, data: bytes) -> None:
        self.came.append(data)
        self._unread += len(data)
        self._readable.set()

    def drains(self) -> None:
        self._writable.set()

    def ends(self, kind: type[Broken] | type[EndOfStream] | type[RemoteProtocolError]) -> None:
        self._finish(kind, "the end")

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        assert size == sum(map(len, data))
        self.sent.append(b"".join(data))
        if self.fills:
            self._writable.clear()

    def _fetch(self) -> bytes:
        data = self.came.pop(0)
        self._unread -= len(data)
        return data

    async def _say_goodbye(self, *, ended: bool) -> None:
        self.came.clear()
        self.done.append("goodbye again" if ended else "goodbye")
        await self.hears_goodbye.wait()

    def abort(self) -> None:
        self._finish(Closed, "aborted")
        self.done.append("abort")

    async def _wait_gone(self) -> None:
        self.done.append("gone")


async def test_a_full_pipe_takes_the_pieces_and_waits_and_who_tries_is_told_so() -> None:
    pipe = StubPipe()
    pipe.fills = True
    async with Owner() as owner:
        sending = owner.start(pipe.send([b"a", b"b"]), name="send")
        await ticks(3)
        assert pipe.sent == [b"ab"]
        assert not sending.done()
        assert not pipe.try_send([b"c"])
        with pytest.raises(Busy):
            await pipe.send([b"c"])
        pipe.drains()
        await sending
    assert pipe.sent == [b"ab"]
    assert pipe.try_send([b"c"])
    assert pipe.sent == [b"ab", b"c"]


async def test_a_send_that_is_cancelled_before_its_turn_has_sent_nothing() -> None:
    pipe = StubPipe()
    pipe.fills = True
    assert pipe.try_send([b"a"])
    async with Owner() as owner:
        sending = owner.start(pipe.send([b"b"]), name="send")
        await ticks(3)
        sending.cancel()
        await asyncio.wait([sending])
        assert pipe.sent == [b"a"]
        pipe.drains()
        assert pipe.try_send([b"c"])  # the cancelled one is not in the way


async def test_after_much_without_a_pause_others_get_a_turn() -> None:
    pipe = StubPipe()
    turns: list[int] = []
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: turns.append(len(pipe.sent)))
    await pipe.send([bytes(999)])
    assert turns == []
    assert pipe.try_send([b"x"])
    assert not pipe.try_send([b"y"])  # now it is time
    await pipe.send([b"y"])
    assert turns == [3]
    assert pipe.try_send([b"z"])


async def test_more_than_a_send_may_hold_is_refused_whole() -> None:
    pipe = StubPipe()
    too_much: list[bytes | memoryview] = [bytes(MAX_SEND_BYTES), b"x"]
    with pytest.raises(LocalProtocolError):
        await pipe.send(too_much)
    with pytest.raises(LocalProtocolError):
        pipe.try_send(too_much)
    assert pipe.sent == []
    pipe.ends(Broken)
    with pytest.raises(Broken):  # the end is told before anything else
        pipe.try_send(too_much)


async def test_what_came_before_the_end_is_received_first_and_the_first_end_counts() -> None:
    pipe = StubPipe()
    pipe.comes(b"last")
    assert pipe.unread_bytes == 4
    pipe.ends(EndOfStream)
    pipe.ends(Broken)
    assert await pipe.receive() == b"last"
    for _ in range(2):
        with pytest.raises(EndOfStream):
            await pipe.receive()
    with pytest.raises(Broken):  # nobody is left to send to
        await pipe.send([b"x"])
    with pytest.raises(Broken):
        pipe.try_send([b"x"])


async def test_the_end_wakes_who_waits_and_says_of_what_protocol() -> None:
    pipe = StubPipe()
    pipe.fills = True
    async with Owner() as owner:
        sending = owner.start(_outcome(pipe.send([b"x"])), name="send")
        receiving = owner.start(_outcome(pipe.receive()), name="receive")
        await ticks(3)
        with pytest.raises(Busy):
            await pipe.receive()
        pipe.ends(RemoteProtocolError)
        for error in (await sending, await receiving):
            assert isinstance(error, RemoteProtocolError)
            assert error.code == "stub"


async def _outcome(work: object) -> Exception | None:
    assert asyncio.iscoroutine(work)
    try:
        await work
    except Exception as error:
        return error
    return None


async def test_closing_throws_away_what_is_unread_and_drops_the_connection_in_the_end() -> None:
    pipe = StubPipe()
    pipe.comes(b"unread")
    pipe.hears_goodbye.set()
    await pipe.aclose()
    assert pipe.done == ["goodbye", "abort", "gone"]
    assert pipe.unread_bytes == 0
    with pytest.raises(Closed):
        await pipe.receive()
    await pipe.aclose()
    assert pipe.done[3:] == ["goodbye again", "abort", "gone"]


async def test_closing_that_is_cancelled_drops_the_connection_at_once() -> None:
    pipe = StubPipe()
    async with Owner() as owner:
        closing = owner.start(pipe.aclose(), name="close")
        await ticks(3)
        assert pipe.done == ["goodbye"]
        closing.cancel()
        await asyncio.wait([closing])
    assert pipe.done == ["goodbye", "abort"]


async def test_closing_ends_although_nobody_answers() -> None:
    pipe = StubPipe()
    await pipe.aclose()
    assert pipe.done == ["goodbye", "abort", "gone"]
