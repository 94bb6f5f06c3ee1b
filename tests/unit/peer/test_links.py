"""Links of a peer: how they are shown, and what a full one does not take goes first when there is room."""

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

    def _take(self, data: Sequence[bytes | memoryview]) -> None:
        if self.broken:
            raise Broken("the line is cut")
        self.sent += b"".join(data)

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        if not self.full:
            self._take(data)
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
        pass


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def _talking() -> tuple[Two, Wire, int, HalfLink, LinkDriver]:
    """Two sessions with a stream between them; the leader's driver has a link that the test holds."""
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
        dispatch=lambda _session, _events: None,
        deliver=lambda _session, _stream, _data: None,
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


async def _ends(driver: LinkDriver) -> None:
    with pytest.raises(Broken, match="the line is cut"):
        await driver.carry(b"")
