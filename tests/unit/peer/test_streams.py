"""The asyncio face of a mux stream: waiting, ends, resets, a session that is over."""

import asyncio

import pytest
from meshd.base.errors import (
    Broken,
    Busy,
    Closed,
    EndOfStream,
    LocalProtocolError,
    Refused,
    UserError,
)
from meshd.base.peer_limits import NEWS_STREAMS
from meshd.base.tasks import Owner
from meshd.mux import events
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.peer.node import Service
from meshd.peer.streams import FAILED, MAX_REASON, MeshStream, Streams

from tests.unit.admin import test_snapshot
from tests.unit.mux.script import Two
from tests.unit.peer.news_scene import Telling
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


# All streams of a session.


class Both:
    """Two sessions on one link, and the streams of the follower, who serves."""

    def __init__(self, owner: Owner) -> None:
        self.here = Telling()
        self.two = Two()
        self.two.link()
        self.blamed: list[str] = []
        self.wakes = 0
        self.member = test_snapshot.member()
        self.streams = Streams(
            session=self.two.follower.session,
            peer=PEER,
            node=self.here.node,
            owner=owner,
            wake=self._wake,
            pass_on=lambda _id, _data: False,
            blame=lambda fault: self.blamed.append(fault.what),
        )
        self.served: list[Stream] = []
        self.held: asyncio.Event = asyncio.Event()
        self.releases = 0

    def _wake(self) -> None:
        self.wakes += 1

    async def hold(self, stream: Stream) -> None:
        """Serve a stream until it is let go."""
        self.served.append(stream)
        await self.held.wait()

    def serve(self, name: str = "hold", **options: bool) -> None:
        self.here.node.services[name] = Service(self.hold, lambda _member, _metadata: None, **options)

    def release(self) -> None:
        self.releases += 1

    async def call(self, service: str = "hold", *, member: bool = True) -> tuple[int, tuple[int, str] | None]:
        """Let the leader open a stream; return its number, and how it was reset if it was."""
        number = self.two.leader.open(service)
        wire = next(iter(self.two.wires.values()))
        self.two.send(self.two.leader, wire)
        data = bytes(wire.to["follower"])
        wire.to["follower"].clear()
        for event in self.two.follower.session.receive(wire.link_id, data, self.two.now):
            self.streams.feed(event, self.member if member else None)
        await asyncio.sleep(0.001)
        self.two.send(self.two.follower, wire)
        self.two.deliver(self.two.leader, wire)
        return number, self.two.leader.resets.get(number)


async def test_a_service_that_is_not_there_refuses_by_its_code() -> None:
    async with Owner() as owner:
        both = Both(owner)
        both.serve()
        for service, member in (("nothing", True), ("hold", False)):
            _, reset = await both.call(service, member=member)
            assert reset is not None and reset[0] == Code.UNKNOWN_SERVICE and f"`{service}`" in reset[1]
        number, reset = await both.call()
        assert reset is None and number in both.two.leader.accepted
        assert [stream.service for stream in both.served] == ["hold"]
        assert both.streams.in_use
        both.held.set()


async def test_who_may_not_is_told_why_in_few_words() -> None:
    async with Owner() as owner:
        both = Both(owner)
        both.here.node.services["hold"] = Service(both.hold, lambda _member, _metadata: "no" * 200)
        _, reset = await both.call()
        assert reset == (Code.REFUSED, ("no" * 200)[:MAX_REASON]) and both.served == []

        def breaks(_member: object, _metadata: object) -> None:
            raise KeyError("a bug")

        both.here.node.services["hold"] = Service(both.hold, breaks)
        _, reset = await both.call()
        assert reset == (Code.REFUSED, FAILED) and len(both.blamed) == 1


async def test_a_reserved_place_comes_back_when_the_handler_has_ended() -> None:
    async with Owner() as owner:
        both = Both(owner)
        both.here.node.services["hold"] = Service(both.hold, lambda _member, _metadata: both.release)
        _, reset = await both.call()
        assert reset is None and both.releases == 0
        both.held.set()
        await asyncio.sleep(0.001)
        assert both.releases == 1


async def test_of_some_services_a_peer_has_one_stream_and_the_next_at_a_pace() -> None:
    async with Owner() as owner:
        both = Both(owner)
        both.serve(once=True)
        taken = 0
        for _ in range(int(NEWS_STREAMS.burst)):
            _, reset = await both.call()
            taken += reset is None
            _, reset = await both.call()
            assert reset is not None and reset[0] == Code.REFUSED, "there is one"
            both.held.set()
            await asyncio.sleep(0.001)
            both.held.clear()
        assert taken == NEWS_STREAMS.burst
        _, reset = await both.call()
        assert reset is not None, "too many in turn"
        await asyncio.sleep(1 / NEWS_STREAMS.per_second)
        _, reset = await both.call()
        assert reset is None
        both.held.set()


@pytest.mark.parametrize(
    ("error", "code", "why"),
    [
        (KeyError("a bug"), Code.BROKEN, FAILED),
        (Broken("the line is cut"), Code.BROKEN, "the line is cut"),
        (EndOfStream("over"), Code.BROKEN, "over"),
        (Busy("b" * 300), Code.BROKEN, "b" * MAX_REASON),
        (Refused("no", code="full"), Code.REFUSED, "no"),
        (UserError("u" * 300), Code.REFUSED, "u" * MAX_REASON),
    ],
)
async def test_a_handler_that_fails_resets_its_stream_and_says_why(
    error: Exception, code: Code, why: str
) -> None:
    async with Owner() as owner:
        both = Both(owner)

        async def fails(_stream: Stream) -> None:
            raise error

        both.here.node.services["hold"] = Service(fails, lambda _member, _metadata: None)
        number, reset = await both.call()
        assert reset == (code, why) and number not in both.streams.by_id
        assert len(both.blamed) == isinstance(error, KeyError)


async def test_what_the_node_stops_is_reset_so() -> None:
    async with Owner() as owner:
        both = Both(owner)
        both.serve()
        number, _ = await both.call()
        owner.cancel()
    wire = next(iter(both.two.wires.values()))
    both.two.send(both.two.follower, wire)
    both.two.deliver(both.two.leader, wire)
    assert both.two.leader.resets[number][0] == Code.SHUTDOWN


async def test_streams_that_are_opened_here_are_accepted_refused_fed_and_broken() -> None:
    async with Owner() as owner:
        both = Both(owner)
        one, two, three = (both.streams.open(name, {}, bulk=False) for name in ("news", "signal", "other"))
        assert both.wakes == 3
        ids = list(both.streams.by_id)
        accepting = owner.start(one.accepted(), name="accept")
        both.streams.feed(events.StreamAccepted(ids[0]), None)
        await accepting
        both.streams.deliver(ids[0], b"data")
        assert await one.read() == b"data"
        both.streams.feed(events.StreamEnded(ids[0]), None)
        with pytest.raises(EndOfStream):
            await one.read()
        both.streams.feed(events.StreamReset(ids[1], Code.REFUSED, "no"), None)
        with pytest.raises(Refused, match="no"):
            await two.accepted()
        assert list(both.streams.by_id) == [ids[0], ids[2]]
        for gone in (events.StreamAccepted(ids[1]), events.StreamEnded(99), events.Writable(99)):
            both.streams.feed(gone, None)
        both.streams.deliver(99, b"for nobody")
        three.reset(1, "done")
        left = [stream.service for stream in both.streams.by_id.values()]
        assert (both.streams.in_use, left) == (False, ["news"])
        both.streams.break_all("the session has ended")
        assert both.streams.by_id == {}
        with pytest.raises(Broken, match="session has ended"):
            await one.write(b"x")


async def test_no_stream_opens_in_a_session_that_is_over() -> None:
    async with Owner() as owner:
        both = Both(owner)
        both.two.follower.session.goodbye(Code.NONE, "over")
        with pytest.raises(Broken):
            both.streams.open("other", {}, bulk=False)
        assert both.streams.by_id == {}
