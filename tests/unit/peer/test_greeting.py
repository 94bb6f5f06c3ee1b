"""The greeting over one link: in order, told why not, and never longer or larger than it may be."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import Broken, EndOfStream, Refused, RemoteProtocolError
from meshd.base.peer_limits import GREETED_FAULTS
from meshd.link.interface import Link, LinkInfo
from meshd.peer.greeting import (
    BANS_PER_MESSAGE,
    GREETING_SECONDS,
    TURN_AWAY_SECONDS,
    Greeted,
    greet,
    turn_away,
)
from meshd.wire.hello import Bans, Go, Greeting, Hello, Refusal, decode
from meshd.wire.message import LengthParser, framed
from meshd.wire.versions import NativeVersion

from tests.sim.loop import run

pytestmark = pytest.mark.virtual

HELLO = Hello(
    version=1,
    software="0.1",
    features=(),
    name="anna",
    role="worker",
    incarnation=bytes(16),
    current=b"",
    fresh=bytes(8),
    chosen=b"",
    native=NativeVersion("mesh 4", "pin", "sources", "cpu"),
    largest_frame=1 << 18,
    grace=120,
    bans_count=0,
    bans_digest=bytes(32),
    clock=1,
    record=b"",
)


class FakeLink:
    """One end of a link made of queues."""

    def __init__(self, inward: asyncio.Queue[bytes], outward: asyncio.Queue[bytes]) -> None:
        self.unread, self._out = inward, outward

    @property
    def info(self) -> LinkInfo:
        raise AssertionError("the greeting does not ask")

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        await self._out.put(b"".join(data))

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        raise AssertionError

    async def receive(self) -> bytes:
        data = await self.unread.get()
        if not data:
            raise EndOfStream("the other side ended the link")
        return data

    def divert(self, take: Callable[[bytes], bool]) -> None:
        raise AssertionError

    async def aclose(self) -> None:
        await self._out.put(b"")


def ends(size: int = 64) -> tuple[FakeLink, FakeLink]:
    up: asyncio.Queue[bytes] = asyncio.Queue(size)
    down: asyncio.Queue[bytes] = asyncio.Queue(size)
    return FakeLink(down, up), FakeLink(up, down)


@dataclass
class Side:
    """A GreetingHandler that takes notes."""

    hello: Hello = HELLO
    bans: tuple[bytes, ...] = ()
    refuses: Refused | None = None
    bans_us: bool = False
    notes: list[str] = field(default_factory=list)
    learned: list[bytes] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    times_kept: int = 0

    def my_hello(self, theirs: Hello | None) -> Hello:
        self.notes.append("hello" if theirs is None else "answer")
        return replace(self.hello, bans_count=len(self.bans), bans_digest=bytes([len(self.bans)]) * 32)

    async def check_hello(self, theirs: Hello) -> None:
        self.notes.append("check")
        if self.refuses is not None:
            raise self.refuses

    def ban_entries(self) -> Sequence[bytes]:
        return self.bans

    def take_bans(self, entries: Sequence[bytes]) -> int:
        self.learned += entries
        return sum(entry.startswith(b"bad") for entry in entries)

    def keep_bans(self) -> None:
        self.kept = list(self.learned)
        self.times_kept += 1

    def check_banned(self, link: Link) -> None:
        self.notes.append("banned?")
        if self.bans_us:
            raise Refused("banned by the root", code="banned")

    def settle(self, mine: Hello, theirs: Hello) -> bytes:
        self.notes.append("settle")
        return b"session"


async def both(leader: Side, follower: Side, *, size: int = 64) -> list[BaseException | Greeted]:
    near, far = ends(size)
    results: list[BaseException | Greeted] = [Broken(""), Broken("")]

    async def side(number: int, link: FakeLink, handler: Side, leads: bool) -> None:
        try:
            results[number] = await greet(link, handler, leader=leads)
        except (Broken, EndOfStream, Refused, RemoteProtocolError) as error:
            results[number] = error
            await link.aclose()

    async with asyncio.TaskGroup() as group:
        group.create_task(side(0, near, leader, True))
        group.create_task(side(1, far, follower, False))
    return results


async def test_hellos_go_across_and_each_side_settles_after_its_check() -> None:
    leader, follower = Side(replace(HELLO, name="leader")), Side(replace(HELLO, name="follower"))
    first, second = await both(leader, follower)
    assert not isinstance(first, BaseException) and not isinstance(second, BaseException)
    assert (first.hello.name, second.hello.name) == ("follower", "leader")
    assert leader.notes == ["hello", "check", "settle", "banned?"]
    assert follower.notes == ["check", "answer", "settle", "banned?"]
    assert leader.learned == follower.learned == []  # equal sets are not sent


@pytest.mark.parametrize("counts", [(0, 1), (1, 0), (3, BANS_PER_MESSAGE + 1), (200, 150)])
async def test_bans_go_both_ways_at_once_even_through_a_narrow_link(counts: tuple[int, int]) -> None:
    sides = [
        Side(bans=tuple(f"{n} {side}".encode() * 100 for n in range(n_bans)))
        for side, n_bans in enumerate(counts)
    ]
    results = await both(sides[0], sides[1], size=1)
    assert not any(isinstance(result, BaseException) for result in results), results
    assert tuple(sides[0].kept) == sides[1].bans
    assert tuple(sides[1].kept) == sides[0].bans
    assert sides[0].times_kept == sides[1].times_kept == 1, "the whole set is written each time"


async def test_bans_of_a_link_that_breaks_halfway_are_kept() -> None:
    near, far = ends()
    for message in (replace(HELLO, bans_digest=b"x" * 32, bans_count=3), Bans((b"1", b"2"), last=False)):
        await far.send([framed(message.encode())])
    await far.aclose()
    side = Side()
    with pytest.raises(EndOfStream):
        await greet(near, side, leader=False)
    assert side.kept == [b"1", b"2"]


@pytest.mark.parametrize(("refuser", "when"), [(0, "hello"), (1, "hello"), (0, "banned")])
async def test_a_refusal_is_told_with_code_and_hint(refuser: int, when: str) -> None:
    sides = [Side(), Side()]
    if when == "hello":
        sides[refuser].refuses = Refused("in use at x", code="identity_in_use", hint="stop it")
    else:
        sides[refuser].bans_us = True
    results = await both(sides[0], sides[1])
    other = results[1 - refuser]
    assert isinstance(other, Refused)
    assert other.code == ("identity_in_use" if when == "hello" else "banned")
    assert other.hint == ("stop it" if when == "hello" else "")


async def test_a_follower_that_refuses_after_the_bans_ends_the_link() -> None:
    """The leader has said Go by then: it learns of it from the end of the link."""
    first, second = await both(Side(), Side(bans_us=True))
    assert isinstance(first, Greeted)
    assert isinstance(second, Refused) and second.code == "banned"


async def test_who_was_refused_does_not_refuse_back() -> None:
    near, far = ends()
    await far.send([framed(Refusal("banned", "you are out").encode())])
    with pytest.raises(Refused, match="you are out"):
        await greet(near, Side(), leader=False)
    assert far.unread.empty()


@pytest.mark.parametrize("leads", [True, False])
async def test_silence_ends_after_ten_seconds(leads: bool) -> None:
    near, _ = ends()
    began = asyncio.get_running_loop().time()
    with pytest.raises(Broken, match="no greeting within 10 s"):
        await greet(near, Side(), leader=leads)
    assert asyncio.get_running_loop().time() - began == GREETING_SECONDS


async def test_a_peer_that_drips_is_not_given_more_time() -> None:
    near, far = ends()

    async def drip() -> None:
        for byte in framed(HELLO.encode()):
            await far.send([bytes([byte])])
            await asyncio.sleep(1)

    began = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        dripping = group.create_task(drip())
        with pytest.raises(Broken, match="no greeting"):
            await greet(near, Side(), leader=False)
        dripping.cancel()
    assert asyncio.get_running_loop().time() - began == GREETING_SECONDS


async def test_what_comes_behind_go_is_handed_on() -> None:
    near, far = ends()
    await far.send([framed(HELLO.encode()) + framed(Go().encode()) + b"frames"])
    side = Side(replace(HELLO, bans_digest=HELLO.bans_digest))
    greeted = await greet(near, side, leader=False)
    assert (greeted.session_id, greeted.rest) == (b"session", b"frames")


@pytest.mark.parametrize(
    "messages",
    [
        [Go()],
        [Bans((), last=True)],
        [HELLO, HELLO],
        [HELLO, Bans((), last=True)],
        [replace(HELLO, bans_digest=b"x"), Go()],
        [replace(HELLO, bans_digest=b"x", bans_count=1), Bans((b"1", b"2"), last=True)],
        [replace(HELLO, bans_digest=b"x", bans_count=1), Bans((b"1",), last=False), Bans((b"2",), last=True)],
    ],
)
async def test_out_of_order_is_refused(messages: list[Greeting]) -> None:
    near, far = ends()
    side = Side()
    for message in messages:
        await far.send([framed(message.encode())])
    with pytest.raises(RemoteProtocolError):
        await greet(near, side, leader=False)


async def test_a_message_too_long_is_refused_by_its_length() -> None:
    near, far = ends()
    await far.send([(1 << 20).to_bytes(4, "big")])
    with pytest.raises(RemoteProtocolError, match="1048576 bytes announced"):
        await greet(near, Side(), leader=True)


WORDS = st.one_of(
    st.builds(Go),
    st.builds(Bans, st.lists(st.binary(max_size=20), max_size=3).map(tuple), last=st.booleans()),
    st.builds(Refusal, st.text("ab", max_size=5), st.text("cd \n", max_size=9)),
    st.builds(
        lambda count, digest: replace(HELLO, bans_count=count, bans_digest=digest),
        st.integers(0, 5),
        st.sampled_from([HELLO.bans_digest, b"other"]),
    ),
).map(lambda message: framed(message.encode()))


@given(st.booleans(), st.lists(WORDS | st.binary(max_size=30), max_size=6))
def test_whatever_a_peer_says_ends_in_a_declared_error_or_a_hello(leads: bool, said: list[bytes]) -> None:
    async def main() -> None:
        near, far = ends()
        side = Side()
        for data in said:
            if data:
                await far.send([data])
        await far.aclose()
        try:
            hello = (await greet(near, side, leader=leads)).hello
        except (Refused, RemoteProtocolError, EndOfStream, Broken):
            pass
        else:
            assert hello.name == HELLO.name
            assert side.notes[-1] == "banned?"
            assert "settle" in side.notes
        parser = LengthParser()
        while not far.unread.empty():
            parser.feed(far.unread.get_nowait())
        for message in parser.messages():
            decode(message)  # we never say what cannot be read

    run(main())


@pytest.mark.parametrize(
    ("bad", "ok"), [(0, True), (GREETED_FAULTS.most, True), (GREETED_FAULTS.most + 1, False)]
)
async def test_some_bans_may_be_damaged_but_not_many(bad: int, ok: bool) -> None:
    entries = (*(b"bad %d" % number for number in range(bad)), b"good")
    near, far = ends()
    side = Side()
    hello = replace(HELLO, bans_digest=b"x" * 32, bans_count=len(entries))
    parts = [Bans(entries[:9], last=False), Bans(entries[9:], last=True)]
    for message in (hello, *parts, Go()):
        await far.send([framed(message.encode())])
    if ok:
        assert (await greet(near, side, leader=False)).session_id == b"session"
    else:
        with pytest.raises(RemoteProtocolError, match="invalid bans"):
            await greet(near, side, leader=False)
    assert tuple(side.kept) == entries and side.times_kept == 1


async def test_who_is_turned_away_is_told_and_listened_to_for_a_moment() -> None:
    near, far = ends()
    refusal = Refused("too much failed", code="faults", hint="wait")
    began = asyncio.get_running_loop().time()
    turning = asyncio.create_task(turn_away(cast(Link, near), refusal))
    for _ in range(3):
        await asyncio.sleep(TURN_AWAY_SECONDS / 4)
        await far.send([b"unread"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert near.unread.empty() and not turning.done()
    with pytest.raises(Refused) as caught:
        await turning
    assert caught.value is refusal
    assert asyncio.get_running_loop().time() - began == pytest.approx(TURN_AWAY_SECONDS)
    parser = LengthParser()
    parser.feed(far.unread.get_nowait())
    [told] = map(decode, parser.messages())
    assert told == Refusal("faults", "too much failed", "wait")


@pytest.mark.parametrize("ends_it", [True, False])
async def test_turning_away_ends_with_the_link(ends_it: bool) -> None:
    near, far = ends()
    await far.aclose() if ends_it else None
    began = asyncio.get_running_loop().time()
    with pytest.raises(Refused):
        await turn_away(cast(Link, near), Refused("no", code="faults"))
    took = asyncio.get_running_loop().time() - began
    assert took == pytest.approx(0.0 if ends_it else TURN_AWAY_SECONDS)
