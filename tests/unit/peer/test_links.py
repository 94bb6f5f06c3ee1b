"""Links of a peer: how they are shown, who sends over one and when, and what a full one does not take."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest
from meshd.base.errors import Broken
from meshd.base.fault_boundary import Contained
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.link.interface import Link, LinkInfo
from meshd.mux.session import LinkStatus, Session
from meshd.peer.links import LinkDriver, PeerLinks

from tests.unit.admin.test_snapshot import NODE, path
from tests.unit.mux.script import Two, Wire

NUMBER = 1


class OneLink:
    """As much of a driver, its link and its session as is asked."""

    def __init__(self, *, rate: float | None) -> None:
        self.link = cast(Link, self)
        self.info: LinkInfo = path(selected=True).link
        self.link_id = NUMBER
        self.session = cast(Session, self)
        self._numbers = LinkStatus(
            link_id=NUMBER,
            carries_data=True,
            rtt=0.03,
            rtt_min=0.02,
            rtt_floor=0.01,
            rate=rate,
            sent=10,
            received=20,
            last_heard=0.0,
            confirmed_at=0.0,
        )

    def link_up(self, _link_id: int, _now: float) -> list[object]:
        return []

    @property
    def data_link(self) -> int:
        return NUMBER

    def links(self) -> tuple[LinkStatus, ...]:
        return (self._numbers,)


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("rate", [2.5e6, None])
def test_a_link_is_shown_as_its_session_sees_it(leads: bool, rate: float | None) -> None:
    links = PeerLinks(peer=NODE.peer, leads=leads, now=lambda: 1.0)
    one = OneLink(rate=rate)
    links.attach(cast(LinkDriver, one))
    links.choose(one.session)
    [status] = links.statuses(one.session)
    assert (status.rate, status.rtt, status.rtt_min) == (rate, 0.03, 0.02)


class HalfLink:
    """Takes what is sent, if `full` or `broken` do not say otherwise; nothing ever arrives."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.full = self.broken = False
        self.open = asyncio.Event()
        self.sending: Callable[[], None] = lambda: None  # called within each `try_send`
        self.arrive: Callable[[bytes], bool] = lambda _data: False

    def _take(self, data: Sequence[bytes | memoryview]) -> None:
        if self.broken:
            raise Broken("the line is cut")
        self.sent += b"".join(data)

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        if not self.full:
            self._take(data)
            self.sending()
        return not self.full

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        while self.full:
            self.open.clear()
            await self.open.wait()
        self._take(data)

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    def divert(self, take: Callable[[bytes], bool]) -> None:
        self.arrive = take


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _talking(heard: Callable[[], None] = lambda: None) -> tuple[Two, Wire, int, HalfLink, LinkDriver]:
    """Two sessions with a stream between them; the leader's driver has a link that the test holds.

    `heard` is called while the leader's session takes in what has come.
    """
    two = Two()
    wire = two.link()
    stream = two.leader.open()
    two.transfer()
    link = HalfLink()
    driver = LinkDriver(
        link=cast(Link, link),
        link_id=wire.link_id,
        session=two.leader.session,
        now=lambda: two.now,
        dispatch=lambda _session, _events: heard(),
        deliver=lambda _session, _stream, _data: heard(),
        rearm=lambda _at: None,
        contained=Contained("peer", "link"),
    )
    return two, wire, stream, link, driver


async def test_what_a_full_link_does_not_take_goes_first_when_there_is_room() -> None:
    two, wire, stream, link, driver = _talking()
    async with Owner() as owner:
        task = owner.start(driver.carry(b""), name="carry")
        await _settled()
        assert driver.pass_on(stream, b"one ")
        link.full = True
        assert driver.pass_on(stream, b"two ")
        assert not driver.pass_on(stream, b"three"), "something waits already: the long way keeps the order"
        two.leader.session.write(stream, b"three")
        driver.wake()
        await _settled()
        link.full = False
        link.open.set()
        await _settled()
        await cancel_and_wait(task)
    two.flows.out("leader", stream).written += b"one two three"
    wire.to["follower"] += link.sent
    two.deliver(two.follower, wire)
    assert two.flows.out("leader", stream).read == 13


async def test_nobody_overtakes_what_a_full_link_left_to_the_task() -> None:
    two, wire, stream, link, driver = _talking()
    async with Owner() as owner:
        task = owner.start(driver.carry(b""), name="carry")
        await _settled()
        link.full = True
        two.leader.write(stream, b"one")
        driver.wake()
        link.full, before = False, len(link.sent)
        two.leader.write(stream, b"two")
        driver.wake()
        assert len(link.sent) == before, "the task has not sent the rest yet"
        await _settled()
        await cancel_and_wait(task)
    wire.to["follower"] += link.sent
    two.deliver(two.follower, wire)
    assert two.flows.out("leader", stream).read == len(b"onetwo")


async def test_what_is_asked_for_while_the_session_is_fed_is_sent_once_and_after_that() -> None:
    sent_before: list[int] = []

    def answer() -> None:
        assert not driver.pass_on(stream, b"short cut"), "the session is at work"
        two.leader.write(stream, b"answer")
        for _ in range(3):
            driver.wake()
        sent_before.append(len(link.sent))

    two, wire, stream, link, driver = _talking(answer)
    async with Owner() as owner:
        task = owner.start(driver.carry(b""), name="carry")
        await _settled()
        begin = len(link.sent)
        two.follower.write(stream, b"question")
        two.flows.into("leader", stream).read += len(b"question")
        link.arrive(b"".join(map(bytes, two.follower.session.transmit(wire.link_id, two.now, 1 << 20))))
        assert sent_before == [begin] and len(link.sent) > begin, "it is sent without the task's turn"
        await cancel_and_wait(task)
    wire.to["follower"] += link.sent
    two.deliver(two.follower, wire)
    assert two.flows.out("leader", stream).read == len(b"answer")


async def test_nobody_sends_within_another_send_and_nothing_is_forgotten() -> None:
    two, wire, stream, link, driver = _talking()
    sends: list[int] = []

    def within() -> None:
        sends.append(len(sends))
        if len(sends) == 1:
            two.leader.write(stream, b"two")
            driver.wake()
            assert len(sends) == 1, "the task, or the send that is under way, takes it along"

    async with Owner() as owner:
        task = owner.start(driver.carry(b""), name="carry")
        await _settled()
        link.sending = within
        two.leader.write(stream, b"one")
        driver.wake()
        await _settled()
        await cancel_and_wait(task)
    wire.to["follower"] += link.sent
    two.deliver(two.follower, wire)
    assert two.flows.out("leader", stream).read == len(b"onetwo")


async def test_nobody_sends_beside_the_farewell() -> None:
    two, _, stream, link, driver = _talking()
    async with Owner() as owner:
        task = owner.start(_ends(driver, "the peer stops"), name="carry")
        await _settled()
        link.full = True
        two.leader.write(stream, b"one")
        driver.end("the peer stops")
        await _settled()
        link.full, before = False, len(link.sent)
        two.leader.write(stream, b"two")
        driver.wake()
        assert len(link.sent) == before, "the farewell is not over yet"
        link.open.set()
        await task


async def test_what_a_broken_link_did_not_take_goes_over_the_next_one() -> None:
    two, wire, stream, link, driver = _talking()
    async with Owner() as owner:
        task = owner.start(_ends(driver), name="carry")
        await _settled()
        link.broken = True
        assert driver.pass_on(stream, b"kept")
        await task
    two.flows.out("leader", stream).written += b"kept"
    two.cut(wire)
    two.link()
    two.transfer()
    assert two.flows.out("leader", stream).read == 4


async def _ends(driver: LinkDriver, why: str = "the line is cut") -> None:
    with pytest.raises(Broken, match=why):
        await driver.carry(b"")
