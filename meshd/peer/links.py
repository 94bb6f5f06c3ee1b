"""The links of one peer: which there are, which carries data, who answers on them.

The session decides nothing about links but what it is told: the leader of the pair chooses
(peer/path_selection.py) and says so to the session.
"""

import asyncio
from collections.abc import Callable

from meshd.base import log
from meshd.base.errors import Broken, Closed
from meshd.base.fault_boundary import Contained
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.interface import Link
from meshd.mux.events import Event, LinkDead, PongReceived
from meshd.mux.session import Session
from meshd.mux.status import LinkStatus
from meshd.peer.dial_schedule import Present
from meshd.peer.interface import PathStatus
from meshd.peer.link_driver import LinkDriver
from meshd.peer.path_selection import SILENT_AFTER, Chooser, Path, surplus

SUSPECT_AFTER = 0.5  # seconds without an answer, or four round trips, that cast doubt on a link being tested
TEST_SECONDS = 1.5  # more, after which it ends
LOG = log.get("peer")


class PeerLinks:
    """Links by their number; every method but `end` and `wake` is about those that are attached."""

    def __init__(self, *, peer: PeerId, leads: bool, now: Callable[[], float]) -> None:
        self._peer = peer
        self._leads = leads
        self._now = now
        self._drivers: dict[int, LinkDriver] = {}
        self._next = 1
        self._pongs: dict[tuple[int, int], asyncio.Future[float]] = {}
        self._why = ""  # this link carries data:
        self._why_of: int | None = None
        self._chooser = Chooser()
        self._chosen_for: Session | None = None
        self._suspects: set[int] = set()  # links that did not answer when they were tested

    def __len__(self) -> int:
        return len(self._drivers)

    def has(self, link: Link) -> bool:
        """True while `link` is attached."""
        return any(driver.link is link for driver in self._drivers.values())

    def wake(self) -> None:
        """The session may have something to send."""
        for driver in self._drivers.values():
            driver.wake()

    def pass_on(self, session: Session, stream_id: int, data: bytes) -> bool:
        """As LinkDriver.pass_on, over the link that carries the data of `session`."""
        driver = self._drivers.get(session.data_link or 0)
        return driver is not None and driver.session is session and driver.pass_on(stream_id, data)

    def end(self, why: str) -> None:
        """End all of them."""
        for driver in self._drivers.values():
            driver.end(why)

    def driver(
        self,
        link: Link,
        session: Session,
        *,
        dispatch: Callable[[Session, list[Event]], None],
        deliver: Callable[[Session, int, bytes | memoryview], None],
        rearm: Callable[[float], None],
        contained: Contained,
    ) -> LinkDriver:
        """The driver for a link whose greeting is over; not attached yet."""
        number = self._next
        self._next += 1
        now = asyncio.get_running_loop().time
        return LinkDriver(
            link=link,
            link_id=number,
            session=session,
            now=now,
            dispatch=dispatch,
            deliver=deliver,
            rearm=rearm,
            contained=contained,
        )

    def attach(self, driver: LinkDriver) -> list[Event]:
        """Tell the session; returns its events. Raises Broken when it has just ended."""
        try:
            happened = driver.session.link_up(driver.link_id, self._now())
        except Closed as error:
            raise Broken(error.what) from None
        self._drivers[driver.link_id] = driver
        return happened

    def detach(self, driver: LinkDriver) -> list[Event] | None:
        """Tell the session; its events, or None for a link that never was attached."""
        if self._drivers.pop(driver.link_id, None) is None:
            return None
        happened: list[Event] = []
        if self._leads and driver.session.data_link == driver.link_id:
            happened = self.choose(driver.session)  # by our rules, before the session takes what is left
        self._suspects.discard(driver.link_id)
        return happened + driver.session.link_down(driver.link_id, self._now())

    # What is known of them.

    def statuses(self, session: Session) -> list[PathStatus]:
        """All links of `session`, the one that carries data first."""
        paths = [self._status(numbers) for numbers in self._numbers(session)]
        return sorted(paths, key=lambda path: not path.selected)

    def selected(self, session: Session) -> tuple[int, PathStatus] | None:
        """The link that carries data."""
        for numbers in self._numbers(session):
            if numbers.carries_data:
                return numbers.link_id, self._status(numbers)
        return None

    def _numbers(self, session: Session) -> list[LinkStatus]:
        return [numbers for numbers in session.links() if numbers.link_id in self._drivers]

    def _status(self, numbers: LinkStatus) -> PathStatus:
        return PathStatus(
            link=self._drivers[numbers.link_id].link.info,
            selected=numbers.carries_data,
            rtt=numbers.rtt,
            why=self._why if numbers.carries_data else "stands by",
            sent_bytes=numbers.sent,
            received_bytes=numbers.received,
            rtt_min=numbers.rtt_min,
            rtt_floor=numbers.rtt_floor,
            rate=numbers.rate,
        )

    # Choice.

    def present(self, session: Session) -> tuple[Present, ...]:
        """All links of `session`, as the planning of attempts sees them."""
        now = self._now()
        found = []
        for numbers in self._numbers(session):
            info = self._drivers[numbers.link_id].link.info
            lively = now - self._last_heard(numbers) <= SILENT_AFTER
            found.append(Present(info.kind, info.path, numbers.carries_data, lively, info.passing))
        return tuple(found)

    def choose(self, session: Session) -> list[Event]:
        """The choice of the link that carries data, if this side leads, and the end of those not needed."""
        links, data_link = session.links(), session.data_link
        if not self._leads:
            self._leave_suspects(session)
            return []
        now = self._now()
        if session is not self._chosen_for:
            self._chosen_for, self._chooser = session, Chooser()
        paths = [self._path(numbers) for numbers in links if numbers.link_id in self._drivers]
        choice = self._chooser.choose(paths, data_link, now)
        if choice.link_id is None:
            return []
        happened: list[Event] = []
        if choice.link_id != data_link:
            happened = session.switch_to(choice.link_id, now)
            LOG.info("path_chosen", peer=self._peer.short, why=choice.why)
        if choice.link_id != self._why_of:
            self._why, self._why_of = choice.why, choice.link_id
        for number in surplus(paths, choice.link_id, since=self._chooser.since, now=now):
            self._drivers[number].end("not needed: there is another link")
        return happened

    def _path(self, numbers: LinkStatus) -> Path:
        info = self._drivers[numbers.link_id].link.info
        return Path(
            link_id=numbers.link_id,
            kind=info.kind,
            rtt=numbers.rtt,
            last_heard=self._last_heard(numbers),
            established_at=info.established_at,
            path=info.path,
            rate=numbers.rate,
            passing=info.passing,
        )

    def _leave_suspects(self, session: Session) -> None:
        """Who does not choose can only end a link: the leader hears of it, and takes another one at once."""
        if self._suspects and any(link.lively for link in self.present(session)):
            for number in self._suspects & self._drivers.keys():
                self._drivers[number].end("no answer after a sleep or a change of addresses")

    def _last_heard(self, numbers: LinkStatus) -> float:
        """When both directions were last shown to work."""
        at = min(numbers.last_heard, numbers.confirmed_at)
        return at - 2 * SILENT_AFTER if numbers.link_id in self._suspects else at

    # Life signs.

    async def first_answer(self, within: float) -> str | None:
        """Where a link leads that answers a ping within that many seconds; None when none does."""
        drivers = list(self._drivers.values())
        async with Owner() as owner:
            pings = [owner.start(self.ping(c.session, c.link_id, within), name="challenge") for c in drivers]
        for driver, ping in zip(drivers, pings, strict=True):
            if ping.result() is not None:
                return driver.link.info.remote
        return None

    async def test(self, look: Callable[[], None]) -> None:
        """Ping all of them: one that does not answer soon counts as silent (`look` is called), then ends."""
        async with Owner() as owner:
            for driver in self._drivers.values():
                owner.start(self._test_one(driver, look), name="test link")

    async def _test_one(self, driver: LinkDriver, look: Callable[[], None]) -> None:
        number, session = driver.link_id, driver.session
        known = next((one.rtt for one in self._numbers(session) if one.link_id == number), None)
        if await self.ping(session, number, max(SUSPECT_AFTER, 4 * (known or 0.0))) is not None:
            return
        self._suspects.add(number)
        look()
        answer = await self.ping(session, number, TEST_SECONDS)
        self._suspects.discard(number)
        if answer is None:
            driver.end("no answer after a sleep or a change of addresses")

    async def ping(self, session: Session, number: int, within: float) -> float | None:
        """Round trip over one link in seconds; None when no answer comes in time."""
        try:
            key = (number, session.ping(number, self._now()))
        except Closed:
            return None  # found dead a moment ago
        pong: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._pongs[key] = pong
        self.wake()
        try:
            async with asyncio.timeout(within):
                return await pong
        except TimeoutError:
            return None
        finally:
            self._pongs.pop(key, None)

    def heard(self, event: PongReceived | LinkDead) -> None:
        """Act on what the session found out about a link."""
        match event:
            case PongReceived(link_id=number, ping_id=ping_id, rtt=rtt):
                if (pong := self._pongs.get((number, ping_id))) is not None and not pong.done():
                    pong.set_result(rtt)
            case LinkDead(link_id=number, why=why):
                if (driver := self._drivers.get(number)) is not None:
                    driver.end(why)
