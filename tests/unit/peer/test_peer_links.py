"""All links of one peer: which one carries data, which are tested and ended, and what a ping tells."""

import asyncio
import math
from dataclasses import replace
from typing import cast

import pytest
from meshd.base.errors import Broken
from meshd.base.tasks import Owner
from meshd.link.interface import Link, LinkInfo, LinkKind
from meshd.mux.events import Event, LinkDead, PongReceived
from meshd.peer.links import SUSPECT_AFTER, TEST_SECONDS, LinkDriver, PeerLinks
from meshd.peer.path_selection import SILENT_AFTER

from tests.unit.admin.test_snapshot import NODE, path
from tests.unit.mux.script import End, Two, Wire

pytestmark = pytest.mark.virtual

INFO: LinkInfo = path(selected=True).link


class Driver:
    """As much of a driver, and of its link, as PeerLinks asks for."""

    def __init__(self, end: End, wire: Wire, kind: LinkKind, number: int) -> None:
        self.session = end.session
        self.link_id = wire.link_id
        self.info = replace(INFO, kind=kind, remote=f"10.0.0.{number}:1", established_at=1000.0)
        self.link = cast(Link, self)
        self.ended: list[str] = []
        self.passed: list[tuple[int, bytes]] = []
        self.woken = 0

    def end(self, why: str) -> None:
        self.ended.append(why)

    def wake(self) -> None:
        self.woken += 1

    def pass_on(self, stream_id: int, data: bytes) -> bool:
        self.passed.append((stream_id, data))
        return True


class Scene:
    """Both sides of a session, and the links of one of them."""

    def __init__(self, *, leads: bool = True) -> None:
        self.two = Two()
        self.two.now = asyncio.get_running_loop().time()
        self.end = self.two.leader if leads else self.two.follower
        self.links = PeerLinks(peer=NODE.peer, leads=leads, now=asyncio.get_running_loop().time)
        self.drivers: list[Driver] = []
        self.looks: list[tuple[bool, ...]] = []

    def add(self, kind: LinkKind = LinkKind.TCP, *, attach: bool = True) -> Driver:
        """Add a link; with `attach` our side's session knows it by its driver."""
        wire = Wire(self.links.new_number())
        self.two.wires[wire.link_id] = wire
        other = self.two.other(self.end)
        other.take(other.session.link_up(wire.link_id, self.two.now))
        driver = Driver(self.end, wire, kind, len(self.drivers) + 1)
        self.drivers.append(driver)
        if attach:
            self.end.take(self.links.attach(cast(LinkDriver, driver)))
        return driver

    def move(self) -> None:
        """Let everything arrive that is under way, and what the session says of it be heard."""
        self.two.now = asyncio.get_running_loop().time()
        before = len(self.end.events)
        self.two.transfer()
        for event in self.end.events[before:]:
            if isinstance(event, PongReceived | LinkDead):
                self.links.heard(event)

    def choose(self) -> int | None:
        self.end.take(self.links.choose(self.end.session))
        return self.end.session.data_link

    def look(self) -> None:
        """Note which links count as lively."""
        self.looks.append(tuple(one.lively for one in self.links.present(self.end.session)))


async def test_links_are_numbered_from_one_and_known_while_they_are_attached() -> None:
    scene = Scene()
    assert len(scene.links) == 0 and scene.links.selected(scene.end.session) is None
    one, two = scene.add(), scene.add(LinkKind.RELAY)
    assert (one.link_id, two.link_id, scene.links.new_number()) == (1, 2, 3)
    assert len(scene.links) == 2 and scene.links.has(one.link)
    scene.links.wake()
    assert one.woken == two.woken == 1
    scene.links.end("enough")
    assert one.ended == two.ended == ["enough"]
    assert scene.links.detach(cast(LinkDriver, one)) is not None
    assert scene.links.detach(cast(LinkDriver, one)) is None
    assert not scene.links.has(one.link) and len(scene.links) == 1
    assert scene.links.heard_at(cast(LinkDriver, one)) == -math.inf
    assert scene.links.heard_at(cast(LinkDriver, two)) > 0


async def test_a_link_of_a_session_that_is_over_is_broken() -> None:
    scene = Scene()
    scene.end.session.goodbye(0, "over")
    with pytest.raises(Broken):
        scene.add()
    assert len(scene.links) == 0


async def test_the_leader_chooses_and_says_why() -> None:
    scene = Scene()
    relay = scene.add(LinkKind.RELAY)
    assert scene.choose() == relay.link_id
    scene.move()
    tcp = scene.add()
    assert scene.choose() == tcp.link_id
    scene.move()
    statuses = scene.links.statuses(scene.end.session)
    assert [status.selected for status in statuses] == [True, False]
    assert [status.link.kind for status in statuses] == [LinkKind.TCP, LinkKind.RELAY]
    assert statuses[0].why not in ("", "stands by") and statuses[1].why == "stands by"
    number, status = scene.links.selected(scene.end.session) or (0, None)
    assert number == tcp.link_id and status == statuses[0]
    present = scene.links.present(scene.end.session)
    assert [(one.kind, one.selected, one.lively) for one in present] == [
        (LinkKind.RELAY, False, True),
        (LinkKind.TCP, True, True),
    ]
    scene.end.take(scene.links.detach(cast(LinkDriver, tcp)) or [])
    assert scene.end.session.data_link == relay.link_id, "before the session takes what is left"


async def test_the_follower_chooses_nothing() -> None:
    scene = Scene(leads=False)
    relay = scene.add(LinkKind.RELAY)
    tcp = scene.add()
    carries = scene.end.session.data_link
    assert scene.choose() == carries
    assert relay.ended == tcp.ended == []


async def test_a_link_that_is_not_needed_is_ended_once_the_other_was_heard_since() -> None:
    scene = Scene()
    older, newer = scene.add(), scene.add()
    scene.choose()
    scene.move()
    await asyncio.sleep(1)
    scene.move()
    scene.links.wake()
    for number in (older.link_id, newer.link_id):
        scene.end.session.ping(number, asyncio.get_running_loop().time())
    scene.move()
    scene.choose()
    assert len(older.ended) + len(newer.ended) == 1
    ended = older if older.ended else newer
    assert ended.link_id != scene.end.session.data_link


async def test_a_ping_tells_its_round_trip_or_nothing_in_time() -> None:
    async with Owner() as owner:
        scene = Scene()
        one = scene.add()
        scene.choose()
        scene.move()
        ping = owner.start(scene.links.ping(scene.end.session, one.link_id, 1.0), name="ping")
        await asyncio.sleep(0)
        scene.two.send(scene.end, scene.two.wires[one.link_id])
        await asyncio.sleep(0.25)
        assert one.woken > 0 and not ping.done()
        scene.move()
        await asyncio.sleep(0)
        assert await ping == pytest.approx(0.25)
        began = asyncio.get_running_loop().time()
        assert await scene.links.ping(scene.end.session, one.link_id, 0.7) is None
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.7)
        assert await scene.links.ping(scene.end.session, 99, 0.7) is None
        scene.move()  # the answer that was late is nobody's


async def test_the_first_link_that_answers_is_named() -> None:
    async with Owner() as owner:
        scene = Scene()
        assert await scene.links.first_answer(1.0) is None
        scene.add()
        two = scene.add()
        scene.choose()
        scene.move()
        scene.two.wires[1].stalled |= {"leader", "follower"}
        first = owner.start(scene.links.first_answer(2.0), name="challenge")
        await asyncio.sleep(0.5)
        scene.move()
        assert await first == two.info.remote
        assert await scene.links.first_answer(2.0) is None


@pytest.mark.parametrize(
    ("answered", "looks", "ends"),
    [
        (SUSPECT_AFTER - 0.1, [], False),
        (SUSPECT_AFTER + 0.1, [(False,)], False),
        (SUSPECT_AFTER + TEST_SECONDS - 0.1, [(False,)], False),
        (None, [(False,)], True),
    ],
)
async def test_a_link_that_is_tested_is_in_doubt_and_then_ended(
    answered: float | None, looks: list[tuple[bool, ...]], ends: bool
) -> None:
    async with Owner() as owner:
        scene = Scene()
        one = scene.add()
        scene.choose()
        scene.move()
        began = asyncio.get_running_loop().time()
        testing = owner.start(scene.links.test(scene.look), name="test")
        if answered is not None:
            await asyncio.sleep(answered)
            scene.move()
        await testing
        assert scene.looks == looks and bool(one.ended) == ends
        took = SUSPECT_AFTER + TEST_SECONDS if answered is None else answered
        assert asyncio.get_running_loop().time() - began == pytest.approx(took)
        scene.look()
        assert scene.looks[-1] == (took <= SILENT_AFTER,), "it is in doubt no more"


async def test_a_follower_leaves_a_link_in_doubt_for_one_that_is_lively() -> None:
    async with Owner() as owner:
        scene = Scene(leads=False)
        dead, good = scene.add(), scene.add(LinkKind.RELAY)
        scene.move()
        scene.two.wires[dead.link_id].stalled |= {"leader", "follower"}
        testing = owner.start(scene.links.test(lambda: None), name="test")
        await asyncio.sleep(SUSPECT_AFTER / 2)
        scene.move()
        await asyncio.sleep(SUSPECT_AFTER / 2 + 0.1)
        scene.choose()
        assert dead.ended and not good.ended
        await testing


async def test_a_link_that_is_found_dead_is_ended_with_its_reason() -> None:
    scene = Scene()
    one, two = scene.add(), scene.add()
    events: list[Event] = [LinkDead(one.link_id, "silence"), LinkDead(99, "nobody's")]
    for event in events:
        assert isinstance(event, LinkDead)
        scene.links.heard(event)
    assert one.ended == ["silence"] and two.ended == []


async def test_data_is_passed_on_over_the_link_that_carries_it() -> None:
    scene = Scene()
    assert not scene.links.pass_on(scene.end.session, 1, b"x"), "no link carries data"
    one, two = scene.add(), scene.add()
    assert scene.links.pass_on(scene.end.session, 1, b"x")
    assert (one.passed, two.passed) == ([(1, b"x")], [])
    other = Scene()
    other.add()
    assert not scene.links.pass_on(other.end.session, 1, b"x"), "another session"
