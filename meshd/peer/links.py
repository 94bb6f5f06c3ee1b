"""Carry one session over the links of a peer: move bytes, choose the link for data, ping links.

`LinkDriver` is a task that sends and a task that receives, until the link ends. It holds no state of the
session: it moves bytes between `Session` and `Link`, and hands the events on. A caller that has given the
session data sends it at once while the task rests. Nothing is sent within another send, or while the session
is being fed, which happens deep in nested calls; and nothing overtakes what a full link has not accepted.
`PeerLinks` holds all links of a peer. The session decides nothing about links: the leader of the pair chooses
(path_selection.py) and informs the session.
"""

import asyncio
import math
from collections.abc import Callable

from meshd.base import log
from meshd.base.errors import Broken, Closed, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.tasks import Owner, cancel_and_wait, first_error
from meshd.identity.keys import PeerId
from meshd.link.interface import Link
from meshd.mux.events import Event, LinkDead, PongReceived
from meshd.mux.session import LinkStatus, Session
from meshd.peer.dial_schedule import Present
from meshd.peer.interface import PathStatus
from meshd.peer.path_selection import SILENT_AFTER, Chooser, Path, surplus

SEND_BYTES = 256 << 10  # per turn of the sender: small enough that a control frame does not wait long
_FAREWELL_SECONDS = 0.5
SUSPECT_AFTER = 0.5  # seconds without an answer (or four round trips) that cast doubt on a link being tested
TEST_SECONDS = 1.5  # further seconds, after which it ends
LOG = log.get("peer")


class LinkDriver:
    """Move bytes between one attached link and its session."""

    def __init__(
        self,
        *,
        link: Link,
        link_id: int,
        session: Session,
        now: Callable[[], float],
        dispatch: Callable[[Session, list[Event]], None],
        deliver: Callable[[Session, int, bytes | memoryview], None],
        rearm: Callable[[float], None],
        contained: Contained,
    ) -> None:
        self.link = link
        self.link_id = link_id
        self.session = session
        self._now = now
        self._limited = session.limited
        self._dispatch = dispatch
        self._deliver = deliver
        self._rearm = rearm
        self._contained = contained
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self.why = ""
        self._fault: RemoteProtocolError | Fault | None = None
        self._rests = False  # the task waits for `_wake`, and nobody else is sending
        self._feeds = False  # the session is taking in what was received
        self._asked = False  # and there is something to send because of it
        # What a full link has not accepted: sent before anything else.
        self._held: list[bytes | memoryview] = []

    def wake(self) -> None:
        """Send what the session may have to send: at once, once the session has been fed, or by the task."""
        if self._feeds:
            self._asked = True
        elif self._rests:
            self._send_now()
        else:
            self._wake.set()

    def pass_on(self, stream_id: int, data: bytes) -> bool:
        """Write to a stream and send it at once; return False, and do nothing, if that takes more steps."""
        if self._feeds or not self._rests:
            return False
        pieces = self.session.fast_path.send(self.link_id, stream_id, data, self._now())
        if pieces is None:
            return False
        try:
            if self.link.try_send(pieces):
                return True
        except (Broken, Closed):
            pieces = [b""]  # the task meets the same error
        self._keep(pieces)
        return True

    def _send_now(self) -> None:
        """Send at once, which saves the turn of the event loop that waking a task would cost."""
        self._rests = False
        try:
            while pieces := self.session.transmit(self.link_id, self._now(), SEND_BYTES):
                if not self.link.try_send(pieces):
                    self._keep(pieces)
                    return
                if sum(map(len, pieces)) < SEND_BYTES:
                    return  # that was all there is
        except (Broken, Closed):
            self._keep([b""])  # the task meets the same error
        finally:
            self._rests = not self._held
            if self._limited:
                self._mind_timer()

    def _keep(self, pieces: list[bytes | memoryview]) -> None:
        """Keep what the link did not take for the task, before anything else."""
        self._held = pieces
        self._rests = False
        self._wake.set()

    def _mind_timer(self) -> None:
        at = self.session.take_timer_at()
        if at is not None:
            self._rearm(at)

    def end(self, why: str) -> None:
        """Send the rest (a goodbye), then leave `carry` with Broken(why)."""
        if not self._ending.is_set():
            self.why = why
            self._ending.set()

    async def carry(self, first: bytes) -> None:
        """Carry the link's traffic; `first` was received behind the greeting.

        Always raises: Broken, EndOfStream, or RemoteProtocolError, which ends the session as well.
        """
        if first:
            self._take(first)
        try:
            async with Owner() as owner:
                sender = owner.start(self._send(), name="link sender")
                receiver = owner.start(self._receive(), name="link receiver")
                self.link.divert(self._took)
                await self._ending.wait()
                await cancel_and_wait(sender, receiver)
                await self._farewell()
        except ExceptionGroup as group:
            raise first_error(group) from None
        raise self._fault or Broken(self.why)

    async def _send(self) -> None:
        session, link, wake = self.session, self.link, self._wake
        while True:
            wake.clear()
            held, self._held = self._held, []
            pieces = held or session.transmit(self.link_id, self._now(), SEND_BYTES)
            if pieces:
                await link.send(pieces)
            else:
                self._rests = True
                self._mind_timer()
                try:
                    await wake.wait()
                finally:
                    self._rests = False

    async def _receive(self) -> None:
        while True:
            self._take(await self.link.receive())

    def _took(self, data: bytes | memoryview) -> bool:
        if self._ending.is_set():
            return True  # the link is being closed
        try:
            with self._contained:  # no other handler is below this callback, only the event loop
                self._take(data)
        except (RemoteProtocolError, Fault) as error:
            self._fault = error
            self.end(error.what)
        return True

    def _take(self, data: bytes | memoryview) -> None:
        self._feeds, self._asked = True, False
        session, now = self.session, self._now()
        try:
            arrived = session.fast_path.receive(self.link_id, data, now)
            if arrived is not None:
                stream_id, payload, ask = arrived
                self._deliver(session, stream_id, payload)
            else:
                ask = True
                self._dispatch(session, session.receive(self.link_id, data, now))
        finally:
            self._feeds = False
        if self._asked or (ask and session.due(self.link_id, now)):
            self.wake()
        self._mind_timer()

    async def _farewell(self) -> None:
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                while pieces := self.session.transmit(self.link_id, self._now(), SEND_BYTES):
                    await self.link.send(pieces)
        except (TimeoutError, Broken):
            return


class PeerLinks:
    """The links of one peer by number; all methods but `end` and `wake` are about attached links."""

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
        self._suspects: set[int] = set()  # links that did not answer a test

    def __len__(self) -> int:
        return len(self._drivers)

    def has(self, link: Link) -> bool:
        """Say whether `link` is attached."""
        return any(driver.link is link for driver in self._drivers.values())

    def wake(self) -> None:
        """Send what the session may have to send."""
        for driver in self._drivers.values():
            driver.wake()

    def pass_on(self, session: Session, stream_id: int, data: bytes) -> bool:
        """Pass data on as LinkDriver does, over the link that carries the data of `session`."""
        driver = self._drivers.get(session.data_link or 0)
        return driver is not None and driver.session is session and driver.pass_on(stream_id, data)

    def end(self, why: str) -> None:
        """End all links."""
        for driver in self._drivers.values():
            driver.end(why)

    def new_number(self) -> int:
        """Return the number of the next link."""
        self._next += 1
        return self._next - 1

    def attach(self, driver: LinkDriver) -> list[Event]:
        """Attach a link to its session and return the events. Raises Broken if the session has just ended."""
        try:
            happened = driver.session.link_up(driver.link_id, self._now())
        except Closed as error:
            raise Broken(error.what) from None
        self._drivers[driver.link_id] = driver
        return happened

    def detach(self, driver: LinkDriver) -> list[Event] | None:
        """Detach a link from its session and return the events, or None if it never was attached."""
        if self._drivers.pop(driver.link_id, None) is None:
            return None
        happened: list[Event] = []
        if self._leads and driver.session.data_link == driver.link_id:
            happened = self.choose(driver.session)  # by our rules, before the session takes what is left
        self._suspects.discard(driver.link_id)
        return happened + driver.session.link_down(driver.link_id, self._now())

    # Knowledge about the links.

    def heard_at(self, driver: LinkDriver) -> float:
        """Return when bytes last came over this link, in loop time; minus infinity if it is not attached."""
        links = (link for link in driver.session.links() if link.link_id == driver.link_id)
        return next((link.last_heard for link in links), -math.inf)

    def statuses(self, session: Session) -> list[PathStatus]:
        """Return the status of all links of `session`, the one that carries data first."""
        paths = [self._status(numbers) for numbers in self._numbers(session)]
        return sorted(paths, key=lambda path: not path.selected)

    def selected(self, session: Session) -> tuple[int, PathStatus] | None:
        """Return number and status of the link that carries data, if any."""
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
        """Return all links of `session`, as the planning of dials sees them."""
        now = self._now()
        found = []
        for numbers in self._numbers(session):
            info = self._drivers[numbers.link_id].link.info
            lively = now - self._last_heard(numbers) <= SILENT_AFTER
            found.append(Present(info.kind, info.path, numbers.carries_data, lively, info.passing))
        return tuple(found)

    def choose(self, session: Session) -> list[Event]:
        """Choose the link that carries data, if this side leads, and end links that are not needed."""
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
        """End suspects if another link is lively: the leader notices, and takes that one at once."""
        if self._suspects and any(link.lively for link in self.present(session)):
            for number in self._suspects & self._drivers.keys():
                self._drivers[number].end("no answer after a sleep or a change of addresses")

    def _last_heard(self, numbers: LinkStatus) -> float:
        """Return when both directions were last shown to work."""
        at = min(numbers.last_heard, numbers.confirmed_at)
        return at - 2 * SILENT_AFTER if numbers.link_id in self._suspects else at

    # Life signs.

    async def first_answer(self, within: float) -> str | None:
        """Return the remote address of a link that answers a ping `within` seconds, or None."""
        drivers = list(self._drivers.values())
        async with Owner() as owner:
            pings = [owner.start(self.ping(c.session, c.link_id, within), name="challenge") for c in drivers]
        for driver, ping in zip(drivers, pings, strict=True):
            if ping.result() is not None:
                return driver.link.info.remote
        return None

    async def test(self, look: Callable[[], None]) -> None:
        """Ping all links. A link that is slow to answer counts as silent (`look` is called), then ends."""
        async with Owner() as owner:
            for driver in self._drivers.values():
                owner.start(self._test_one(driver, look), name="test link")

    async def _test_one(self, driver: LinkDriver, look: Callable[[], None]) -> None:
        number, session = driver.link_id, driver.session
        known = next((link.rtt for link in self._numbers(session) if link.link_id == number), None)
        if await self.ping(session, number, max(SUSPECT_AFTER, 4 * (known or 0.0))) is not None:
            return
        self._suspects.add(number)
        look()
        answer = await self.ping(session, number, TEST_SECONDS)
        self._suspects.discard(number)
        if answer is None:
            driver.end("no answer after a sleep or a change of addresses")

    async def ping(self, session: Session, number: int, within: float) -> float | None:
        """Return the round trip over one link in seconds; None if no answer comes in time."""
        try:
            key = (number, session.ping(number, self._now()))
        except Closed:
            return None  # the link was found dead a moment ago
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
        """Act on the session's findings about a link."""
        match event:
            case PongReceived(link_id=number, ping_id=ping_id, rtt=rtt):
                if (pong := self._pongs.get((number, ping_id))) is not None and not pong.done():
                    pong.set_result(rtt)
            case LinkDead(link_id=number, why=why):
                if (driver := self._drivers.get(number)) is not None:
                    driver.end(why)
