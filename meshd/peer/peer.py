"""Look after one peer: dial while wanted, greet, keep links, one durable session and its streams.

A link is dialled here or accepted by a listener. Either way `run_link` owns it from its greeting to its end;
`serve` owns the dials, the timer of the session, and the handlers of streams that the peer opens. Pure
modules make the decisions: which transport is dialled when (dial_schedule.py), which link carries data
(path_selection.py, through links.py), which session continues (mux/session_choice.py), whether the peer's
process has ended (Departure). peer_facts.py keeps what people see of the peer.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial

from meshd.base import log
from meshd.base.admission import Slots
from meshd.base.errors import Broken, Closed, CutOff, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault, contained
from meshd.base.peer_limits import LINKS
from meshd.base.tasks import Alarm, Owner
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.link.interface import TRANSPORTS, Dialer, DialError, DialFailure, Link, LinkKind, Transport, Tried
from meshd.mux import events, session_choice
from meshd.mux.events import Code
from meshd.mux.session import Session
from meshd.peer.dial_schedule import Departure, DialPlan, DialSchedule, Facts, Failed, Present
from meshd.peer.greeting import greet, in_use, turn_away
from meshd.peer.interface import Book, MetadataValue, PathStatus, PeerState, PeerStatus
from meshd.peer.limits import DialRates
from meshd.peer.links import LinkDriver, PeerLinks
from meshd.peer.node import Node
from meshd.peer.path_selection import fragile
from meshd.peer.peer_facts import OWN_GOODBYE, PeerFacts
from meshd.peer.streams import MeshStream, Streams
from meshd.wire.dialable import Dialable, Source
from meshd.wire.hello import Hello

CHOOSE_SECONDS = 1.0  # between two choices of the link that carries data, unless one comes or goes
TIMER_SLACK = 0.02  # an acknowledgement may be late by at most so many seconds
CHALLENGE_SECONDS = 2.0  # an older incarnation that answers within this keeps the identity
FAREWELL_SECONDS = 3.0  # for the goodbye to a dropped node; then its links are cut
ATTEMPT_SECONDS = 30.0  # for a dialler without its own limit
LOG = log.get("peer")


class Peer:
    """Do everything that this node does with one peer. Implements greeting.GreetingHandler.

    If two `dialers` are due, the first begins first. `admitter`: the admitter of a peer that called us.
    """

    def __init__(
        self,
        *,
        node: Node,
        peer: PeerId,
        book: Book,
        dialers: Sequence[Dialer],
        rates: DialRates,
        rng: Callable[[], float],
        admitter: Admitter | None = None,
    ) -> None:
        self._node = node
        self._book = book
        self._dialers = dialers
        self._rates = rates
        self._rng = rng
        self._source = f"peer {peer.short}"
        self.id = peer
        self.leads = node.peer > peer  # this side decides which link carries data
        self.facts = PeerFacts(node, book, peer)
        self.admitter = admitter
        self.used_at = node.now()  # when it was last wanted or had an open stream, as the mesh saw it
        self.news_session = b""  # the session in which the mesh keeps a news stream open
        self.news: asyncio.Task[None] | None = None  # what keeps it open
        self._is_dropped = asyncio.Event()
        # Dials: by the index of their dialler.
        self._schedule = DialSchedule(tuple(dialer.transport for dialer in dialers))
        self._attempts: dict[int, asyncio.Task[None]] = {}
        self._greeting: dict[int, Link] = {}  # dialled, and not attached yet
        self._failed: dict[int, Failed] = {}
        self._wake = asyncio.Event()
        self._is_test_due = self._is_leaving = False
        self._wanted = True
        self._departure = Departure()
        # Links.
        self._room = Slots(LINKS)
        self._links = PeerLinks(peer=peer, leads=self.leads, now=node.now)
        self._contained = Contained(self._source, "link", self.blame)
        self._fault: MeshdError | None = None  # the peer's last violation, until it delays the dials
        self._shown: tuple[Present, ...] = ()
        self._chosen_at = 0.0
        # The session: at most one at a time, agreed on in greetings, given up once.
        self.streams: Streams | None = None  # of the present session; read once a message
        self._session_id = b""
        self._fresh = node.random(session_choice.HALF_BYTES)
        self._incarnation = b""  # the peer's start that owns this identity
        self._grace = 0
        # The end of grace for a session that no link has carried yet.
        self._unlinked_until: float | None = None
        self._owner: Owner | None = None
        self._is_served = asyncio.Event()
        self._alarm = Alarm(self._ring)

    # Questions of others.

    @property
    def linked(self) -> bool:
        """True if at least one link carries data or stands by."""
        return len(self._links) > 0

    @property
    def in_use(self) -> bool:
        """True while a stream is open that is not of the mesh itself."""
        return self.streams is not None and self.streams.in_use

    @property
    def session_id(self) -> bytes:
        """The id: it changes whenever streams could not survive; empty without a session."""
        return self._session_id if self.streams is not None else b""

    @property
    def hears(self) -> bool:
        """True if something was heard from the peer a moment ago."""
        return any(link.lively for link in self._present())

    def status(self) -> PeerStatus:
        """Return a snapshot."""
        streams = self.streams
        return self.facts.status(
            self._links.statuses(streams.session) if streams is not None else [],
            is_connecting=streams is None and self._schedule.running,
            failed=self._failed,
            grace=self._grace,
        )

    def open_stream(self, service: str, metadata: Mapping[str, MetadataValue], *, bulk: bool) -> MeshStream:
        """Open a stream. Raises Broken without a session, Busy when too many streams are open."""
        if self.streams is None:
            raise self.facts.not_connected()
        return self.streams.open(service, metadata, bulk=bulk)

    async def ping(self, within: float) -> tuple[float, PathStatus]:
        """Return the round trip in seconds over the link that carries data, and that link. Raises Broken."""
        streams = self.streams
        selected = self._links.selected(streams.session) if streams is not None else None
        if streams is None or selected is None:
            raise self.facts.not_connected()
        number, path = selected
        rtt = await self._links.ping(streams.session, number, within)
        if rtt is None:
            raise Broken(f"no answer from {self.facts.label} within {within:g} s")
        return rtt, path

    def blame(self, fault: Fault) -> None:
        """Count an unexpected failure that the peer caused here."""
        self._node.faults.blame(self.id, self._node.now(), fault.what)

    # Reports of others.

    @property
    def wanted(self) -> bool:
        """True if there is to be a session. If not, nothing is dialled; existing links stay."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._wake.set()

    def poke(self, *, although_connected: bool = False) -> None:
        """Dial now: something changed (a record, a NAT). Back-offs are forgotten.

        `although_connected`: our addresses changed, or we slept; links are tested, and dialled again.
        """
        self._schedule.changed(self._dial_facts(), again=although_connected)
        self._is_test_due = self._is_test_due or although_connected
        self._wake.set()

    def dial_for_news(self, *, if_away: bool = False) -> None:
        """Dial now, as there is news of the peer, or (`if_away`) it is needed; but not too often."""
        now = self._node.now()
        if (not if_away or self._schedule.is_away(now)) and self._rates.retries.spend(self.id, now):
            self.poke()
        self._wake.set()  # there may be something to dial for the first time

    def close(self, code: Code, reason: str) -> None:
        """Say goodbye on every link and end the session: its streams break, with `reason`."""
        if self.streams is not None:
            self.streams.session.goodbye(code, reason)
        self._end_session(f"{OWN_GOODBYE}: {reason}")

    def stop(self) -> None:
        """Stop dialling."""
        self._is_leaving = True
        self._wake.set()

    def drop(self) -> None:
        """Stop dialling, and let `serve` return once the goodbye is out."""
        self.stop()
        self._is_dropped.set()

    # Life.

    async def serve(self) -> None:
        """Keep the session and dial, until the peer is dropped, and the goodbye to it is out."""
        async with Owner() as owner:
            owner.start(self._keep_session(), name=f"connection {self.id.short}")
            owner.start(self._dial(), name=f"connector {self.id.short}")
            await self._is_dropped.wait()
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    seen = -1
                    while self.linked:
                        seen = await self._node.wait_changed(seen)
            except TimeoutError:
                pass
            self.close(Code.NONE, "not a member any more")  # ends a link that was made meanwhile
            owner.cancel()

    async def _keep_session(self) -> None:
        """Run timers and the handlers of incoming streams until cancelled."""
        async with Owner() as owner:
            self._owner = owner
            self._is_served.set()
            try:
                await self._alarm.run()
            finally:  # before the owner ends: it accepts no new handlers from here on
                self._owner = None
                self._drop_session("this node is stopping", PeerState.KNOWN)

    async def run_link(self, link: Link) -> None:
        """Run `link` until it ends; a surplus link is closed. Raises as `_live_on`."""
        release = self._room.take(self.id)
        if release is None:
            LOG.info("link_surplus", peer=self.id.short, link=link.info.kind.value)
            await link.aclose()
            return
        try:
            await self._live_on(link)
        finally:
            release()

    async def _live_on(self, link: Link) -> None:
        """Run `link`: greet, attach, carry; return when it has ended.

        Raises Refused when either side refuses, RemoteProtocolError when the peer broke the rules.
        """
        driver: LinkDriver | None = None
        cut = False
        try:
            # Greet, then carry.
            too_many = self._node.faults.refusal(self.id, self._node.now())
            if too_many is not None:
                await turn_away(link, too_many)
            with self._contained:
                await self._is_served.wait()
                greeted = await greet(link, self, leader=self.leads)
                self.check_banned(link)  # a ban may have come during the last flight
                driver = self._new_driver(link, greeted.session_id)
                self._attach(driver, greeted.hello)
                await driver.carry(greeted.rest)
        # A violation ends the session as well.
        except (RemoteProtocolError, Fault) as error:
            self.facts.last_error = error.what
            self._fault = error
            if isinstance(error, RemoteProtocolError):
                LOG.warning("peer_broke_protocol", peer=self.id.short, why=error.what)
                self._node.faults.broke(self.id, self._node.now(), error.what)
            if driver is not None and self._is_current(driver.session):
                self._end_session(f"protocol error: {error.what}")
            raise
        except (Broken, EndOfStream, Refused) as error:
            self.facts.last_error = error.what
            cut = isinstance(error, CutOff)
            if isinstance(error, Refused):
                raise
        finally:
            try:
                if driver is not None:
                    self._detach(driver, cut=cut)
            finally:
                await link.aclose()

    # Greetings (greeting.GreetingHandler).

    def my_hello(self, theirs: Hello | None) -> Hello:
        """Return our Hello with what this side knows of sessions; the leader speaks first."""
        if theirs is None:
            return self._node.hello(current=self.session_id, fresh=self._fresh, chosen=b"")
        offer = session_choice.SessionOffer(current=theirs.current or None, fresh=theirs.fresh)
        answer = session_choice.answer(
            offer, mine=self.session_id or None, salt=self._node.random(session_choice.HALF_BYTES)
        )
        return self._node.hello(current=b"", fresh=b"", chosen=answer.session_id)

    async def check_hello(self, theirs: Hello) -> None:
        """Refuse a second place with one identity while the first one answers. Raises Refused."""
        if self._incarnation in (b"", theirs.incarnation):
            return
        remote = await self._links.first_answer(CHALLENGE_SECONDS)
        if remote is not None:
            raise in_use(remote)
        # If they are equal now, another link of the new process was quicker, and has begun.
        if self._incarnation != theirs.incarnation:
            self._end_session("it was restarted")

    def settle(self, mine: Hello, theirs: Hello) -> bytes:
        """Begin the session that the Hellos agree on, unless it exists; return its id. Raises Broken."""
        self._incarnation = theirs.incarnation
        session_id, begins = self._agreed(mine, theirs)
        if begins:
            self._end_session("the peer has lost the session")
            if self._owner is None or self._is_leaving:
                raise Broken("this node is stopping")
            self._begin_session(session_id, grace=min(theirs.grace, mine.grace), owner=self._owner)
        return session_id

    def _agreed(self, mine: Hello, theirs: Hello) -> tuple[bytes, bool]:
        """Return the id on which both Hellos agree, and whether that session has yet to begin."""
        if not self.leads:
            return mine.chosen, mine.chosen != self.session_id
        verdict = session_choice.settle(theirs.chosen, current=self.session_id or None, fresh=self._fresh)
        if verdict is session_choice.SessionVerdict.STALE:
            raise Broken("the peer answered for a session that has ended")
        if verdict is session_choice.SessionVerdict.ATTACH:
            return theirs.chosen, False
        self._fresh = self._node.random(session_choice.HALF_BYTES)
        return theirs.chosen, True

    def ban_entries(self) -> Sequence[bytes]:
        """Return all bans that this node knows."""
        return self._node.bans.entries()

    def take_bans(self, entries: Sequence[bytes]) -> int:
        return self._node.take_bans(entries)

    def keep_bans(self) -> None:
        self._node.keep_bans()

    def check_banned(self, link: Link) -> None:
        """Raise Refused (code `banned`) if the peer is banned."""
        self._node.check_banned(link.info.member)

    # The session.

    def _begin_session(self, session_id: bytes, *, grace: int, owner: Owner) -> None:
        """Create a session; the previous one was dropped. `owner` runs the handlers of the peer's streams."""
        self._session_id, self._grace = session_id, grace
        session = Session(
            side="leader" if self.leads else "follower",
            session_id=session_id,
            config=self._node.mux_config(grace),
            budget=self._node.budget,
        )
        self.streams = Streams(
            session=session,
            peer=self.id,
            node=self._node,
            owner=owner,
            wake=self._links.wake,
            pass_on=partial(self._links.pass_on, session),
            blame=self.blame,
        )
        self._unlinked_until = self._node.now() + grace
        self.facts.set_state(PeerState.CONNECTING)
        self._set_alarm()

    def _is_current(self, session: Session) -> bool:
        return self.streams is not None and session is self.streams.session

    def _ring(self) -> None:
        """Act on a timer of the session that is due."""
        streams = self.streams
        if streams is not None:
            now = self._node.now()
            if self._unlinked_until is not None and now >= self._unlinked_until:
                self._end_session("no link came for the new session", PeerState.LOST)
            self._dispatch(streams.session, streams.session.handle_timeout(now))
            self._links.wake()
            if now - self._chosen_at >= CHOOSE_SECONDS:
                self._chosen_at = now
                self._choose()
                self._look_at_links()
        self._set_alarm()

    def _set_alarm(self) -> None:
        streams = self.streams
        self._alarm.set(None if streams is None else streams.session.next_timeout() or self._unlinked_until)

    def _rearm(self, at: float) -> None:
        """Set the timer for the session's `at`, when an acknowledgement that waits for company has to go out.

        The timer may be late by as much as the acknowledgement was to wait, within TIMER_SLACK: moving it
        each time costs more.
        """
        armed = self._alarm.at
        if armed is None or armed > at + min(at - self._node.now(), TIMER_SLACK):
            self._set_alarm()

    def _deliver(self, session: Session, stream_id: int, data: bytes | memoryview) -> None:
        streams = self.streams
        if streams is not None and session is streams.session:
            streams.deliver(stream_id, data)

    def _dispatch(self, session: Session, happened: Sequence[events.Event]) -> None:
        for event in happened:
            streams = self.streams
            if streams is None or session is not streams.session:
                return  # the end of an older session: its streams are broken already
            if type(event) is events.DataReceived:  # nearly all events
                streams.deliver(event.stream_id, event.data)
                continue
            match event:
                case events.PongReceived() | events.LinkDead():
                    self._links.heard(event)
                case events.GoodbyeReceived(code=code, reason=reason):
                    self.facts.said_goodbye(code, reason)
                    self._end_session(reason or "the peer said goodbye")
                    if self._node.events is not None:
                        self._node.events.said_goodbye(self.id, code)
                case events.SessionLost(reason=reason):
                    self._end_session(reason, PeerState.LOST)
                case events.Switched(link_id=link_id):
                    if link_id is not None:
                        self.facts.carried()
                    self._wake.set()
                    self._node.changed()
                case _:
                    streams.feed(event, self.facts.member)

    def _end_session(self, reason: str, state: PeerState = PeerState.KNOWN) -> None:
        """End the session for both sides, with its links."""
        self._drop_session(reason, state)
        self._links.end(reason)

    def _drop_session(self, reason: str, state: PeerState) -> None:
        streams, self.streams = self.streams, None
        self._unlinked_until = None
        if streams is None:
            return
        self.facts.last_error = reason
        self.facts.set_state(state)
        streams.break_all(reason)
        self._look_at_links()
        self._set_alarm()
        self._node.changed()

    # Links.

    def _new_driver(self, link: Link, session_id: bytes) -> LinkDriver:
        """Return the driver for a link whose greeting is over; it is not attached yet. Raises Broken."""
        if self.streams is None or self._session_id != session_id:
            raise Broken("the session ended during the greeting")
        return LinkDriver(
            link=link,
            link_id=self._links.new_number(),
            session=self.streams.session,
            now=asyncio.get_running_loop().time,
            dispatch=self._dispatch,
            deliver=self._deliver,
            rearm=self._rearm,
            contained=self._contained,
        )

    def _attach(self, driver: LinkDriver, hello: Hello) -> None:
        link = driver.link
        happened = self._links.attach(driver)
        self.facts.met(hello, link.info.member)
        self._departure.link_up(hello.incarnation)
        self._unlinked_until = None  # from now on the session keeps its own grace
        self._dispatch(driver.session, happened)
        self.facts.link_up(link.info)
        self._look_again()
        self._set_alarm()
        self._node.changed()
        if self._node.events is not None:
            self._node.events.link_made(self.id, hello, link.info)

    def _detach(self, driver: LinkDriver, *, cut: bool) -> None:
        heard, now = self._links.heard_at(driver), self._node.now()
        happened = self._links.detach(driver)
        if happened is None:
            return
        info, last = driver.link.info, not self.linked
        self._departure.link_ended(info.remote, info.path, cut=cut, heard=heard, last=last, now=now)
        self._dispatch(driver.session, happened)
        self.facts.link_lost(driver.link.info, driver.why)
        if not self.linked and self.streams is not None:
            self.facts.set_state(PeerState.SUSPENDED)
        self._look_again()
        self._set_alarm()
        self._node.changed()

    def _present(self) -> tuple[Present, ...]:
        """Return the existing links, as the planning of dials sees them."""
        return self._links.present(self.streams.session) if self.streams is not None else ()

    def _choose(self) -> None:
        if self.streams is not None:
            session = self.streams.session
            self._dispatch(session, self._links.choose(session))

    def _look_again(self) -> None:
        self._choose()
        self._look_at_links()
        self._links.wake()

    def _look_at_links(self) -> None:
        present = self._present()
        if present != self._shown:
            self._shown = present
            self._wake.set()

    # Dials.

    async def _dial(self) -> None:
        """Dial for as long as this runs, and own the links that were made."""
        async with Owner() as owner:
            while True:
                self._wake.clear()
                self._look_at_attempts()
                plan = self._dial_plan()
                for index in plan.drop:
                    self._attempts[index].cancel()
                for index in plan.start:
                    self._schedule.began(index)
                    self._attempts[index] = self._start(owner, self._attempt(index, owner), "dial")
                times = [at for at in (plan.at, self._ask_whether_gone(owner)) if at is not None]
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(times, default=None)):
                        await self._wake.wait()

    def _start(self, owner: Owner, work: Coroutine[object, object, None], what: str) -> asyncio.Task[None]:
        return owner.start_for(self._source, work, name=f"{what} {self.id.short}", blame=self.blame)

    def _look_at_attempts(self) -> None:
        """Act on links that have finished their greeting, and on the last session's fault."""
        for index, link in list(self._greeting.items()):
            if self._links.has(link):
                del self._greeting[index]
                self._attempts.pop(index, None)
                self._failed.pop(index, None)
                self._schedule.over(index)
                info = link.info
                if info.kind is LinkKind.TCP and not fragile(info.kind, info.path):
                    self._book.worked(self.id, info.remote)
        fault, self._fault = self._fault, None
        if fault is not None:  # a new link would most likely end the same way
            self.facts.last_error = fault.what
            self._schedule.refused(self._node.now(), self._rng())

    def _dial_plan(self) -> DialPlan:
        if self._is_leaving or not self._wanted:
            return DialPlan(drop=tuple(index for index in self._attempts if index not in self._greeting))
        if self._is_test_due:
            self._is_test_due = False
            if self._owner is not None and self.streams is not None:
                self._start(self._owner, self._links.test(self._look_again), "test links")
        return self._schedule.plan(self._dial_facts(), self._node.now())

    def _dial_facts(self) -> Facts:
        present, candidates = self._present(), self.facts.places()
        return Facts(
            present,
            possible=bool(candidates) or self._book.record(self.id) is not None,
            leads=self.leads,
            near=not present and self._node.host.is_near(candidates),
        )

    def _affordable(self, transport: Transport) -> list[Dialable]:
        """Return what may be dialled now: an address that only the peer names counts against its rate."""
        proto, places = TRANSPORTS[transport].proto, self.facts.places()
        if proto is None:
            return places
        now = self._node.now()
        sure = {at for source, given in self._book.sources(self.id) if source is Source.GIVEN for at in given}
        record = self._book.record(self.id)
        admitter = None if record is None else record.chain.admitter
        invited_us = self._node.host.record().chain.leaf.issuer == self.id
        return [
            place
            for place in places
            if place.proto == proto
            and (place in sure or self._rates.may_dial(self.id, admitter, place, now, invited_us=invited_us))
        ]

    async def _attempt(self, index: int, owner: Owner) -> None:
        """Dial, and hand the link to a separate task: giving up the attempt must not end the link."""
        dialer = self._dialers[index]
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                link = await contained(
                    dialer.dial(self.id, self._affordable(dialer.transport)),
                    source=self._source,
                    name=f"dial {dialer.transport.value}",
                    blame=self.blame,
                )
        except TimeoutError:
            what = f"no link within {ATTEMPT_SECONDS:.0f} s"
            kind = TRANSPORTS[dialer.transport].kind
            self._fell_through(index, DialError(what, kind=kind, failure=DialFailure.TIMEOUT))
        except MeshdError as error:
            self._fell_through(index, error)
        except asyncio.CancelledError:
            self._attempts.pop(index, None)
            self._schedule.over(index)
            raise
        else:
            self._greeting[index] = link
            self._schedule.dialled(index)
            await self._hand_over(link, self._run_dialled(index, link), owner)
        finally:
            self._wake.set()

    async def _hand_over(self, link: Link, work: Coroutine[object, object, None], owner: Owner) -> None:
        try:
            self._start(owner, work, "link to")
        except Closed:  # this node is stopping
            await link.aclose()

    async def _run_dialled(self, index: int, link: Link) -> None:
        error: MeshdError | None = None
        began = self._node.now()
        try:
            await self.run_link(link)
        except MeshdError as caught:
            error = caught
        finally:
            if self._greeting.get(index) is link:  # never attached, or so briefly that nobody saw it
                del self._greeting[index]
                # Without its own error the peer just hung up: it is not dialled again at once either.
                self._fell_through(index, error or Broken("the link ended before it carried any data"))
                if isinstance(error, Refused):  # by the peer itself: the link was proven
                    self._schedule.refused(self._node.now(), self._rng())
            else:
                now = self._node.now()
                self._schedule.ended(index, lived=now - began, now=now, draw=self._rng())
            self._wake.set()

    def _fell_through(self, index: int, error: MeshdError) -> None:
        """Note an attempt that brought no link."""
        self._attempts.pop(index, None)
        transport = self._dialers[index].transport
        if isinstance(error, DialError) and transport is Transport.TCP:
            self._dials_failed(error.tried)
        failure = error.failure if isinstance(error, DialError) else None
        self._failed[index] = Failed(transport, failure, error.what)
        # An unexpected failure will happen again; for a peer that broke the rules see `_fault`.
        refused = isinstance(error, Refused | Fault)
        self._schedule.failed(index, self._node.now(), self._rng(), refused=refused)
        if not self.linked and (refused or index == min(self._failed)):
            self.facts.last_error = error.what
        if isinstance(error, Refused):
            self.facts.refused(error)

    # The end of the peer's process: see Departure.

    def _ask_whether_gone(self, owner: Owner) -> float | None:
        """Dial where the peer was, if that is due; return when it is due next.

        The attempts of the schedule may take longer: they wait for all addresses of the peer.
        """
        departure = self._departure
        at = departure.ask_at if not self._is_leaving and self._wanted else None
        if at is None or at > self._node.now():
            return at
        tcp = next((dialer for dialer in self._dialers if dialer.transport is Transport.TCP), None)
        places = [] if tcp is None else self._affordable(Transport.TCP)
        places = [place for place in places if place.host in departure.hosts]
        departure.asked()
        if tcp is not None and places:
            self._start(owner, self._dial_where_it_was(tcp, places, owner), "ask")
        return departure.ask_at

    async def _dial_where_it_was(self, dialer: Dialer, places: Sequence[Dialable], owner: Owner) -> None:
        try:
            async with asyncio.timeout(ATTEMPT_SECONDS):
                link = await dialer.dial(self.id, places)
        except DialError as error:
            self._dials_failed(error.tried)
        except (MeshdError, TimeoutError):
            return  # something answers there
        else:
            await self._hand_over(link, self._run_found(link), owner)
        finally:
            self._wake.set()

    async def _run_found(self, link: Link) -> None:
        with suppress(MeshdError):  # the facts keep the reason
            await self.run_link(link)

    def _dials_failed(self, tried: Sequence[Tried]) -> None:
        """Note how plain TCP dials have ended. The session does not wait for a process that is gone."""
        why = self._departure.tried(tried, self._node.now())
        if why and self.streams is not None and not self.linked:
            self.facts.found_gone(why)
            self._end_session(why, PeerState.LOST)
