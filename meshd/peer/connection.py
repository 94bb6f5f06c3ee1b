"""The driver of one peer: links in, one durable session, streams out.

`run_link` owns one link from its greeting to its end, in the task that made or accepted it;
`serve` owns the session's timers and the handlers of streams that the peer opens. What happens is handed on:
to the links (links.py), the session (session_holder.py), what status shows (status_view.py). Whether a link
may go on is decided in admission.py, which one carries data in path_selection.py.
"""

import asyncio
from collections.abc import Mapping, Sequence

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.peer_limits import LINKS
from meshd.base.tasks import Owner
from meshd.base.work_slots import Slots
from meshd.identity.keys import PeerId
from meshd.link.interface import Link
from meshd.mux import events
from meshd.mux.events import Code
from meshd.mux.session import Session
from meshd.peer.admission import Admission
from meshd.peer.alarm import Alarm
from meshd.peer.dial_schedule import Present
from meshd.peer.greeting import greet
from meshd.peer.interface import MetadataValue, PathStatus, PeerState, PeerStatus
from meshd.peer.link_driver import LinkDriver
from meshd.peer.links import PeerLinks
from meshd.peer.node import DiallingSide, Node
from meshd.peer.session_holder import SessionHolder
from meshd.peer.status_view import OWN_GOODBYE, StatusView
from meshd.peer.stream import MeshStream
from meshd.wire.hello import Hello

CHOOSE_SECONDS = 1.0  # between two looks at which link should carry data, unless one comes or goes
TIMER_SLACK = 0.02  # seconds by which an acknowledgement may come late at most
LOG = log.get("peer")


class PeerConnection:
    """Everything this node has with one peer."""

    def __init__(self, node: Node, peer: PeerId, dialling: DiallingSide) -> None:
        self._node = node
        self.peer = peer
        self._dialling = dialling
        self.leads = node.peer > peer  # this side decides which link carries data
        self._room = Slots(LINKS)
        self._links = PeerLinks(peer=peer, leads=self.leads, now=node.now)
        self._held = SessionHolder(node, peer, self._links, leads=self.leads, blame=self.blame)
        self._admission = Admission(node, self._held, self._links, replace=self._end_session)
        self.view = StatusView(node, peer, dialling)
        self._alarm = Alarm(self._ring)
        self._chosen_at = 0.0
        self._owner: Owner | None = None
        self._begun = asyncio.Event()
        self._fault: MeshdError | None = None
        self._contained = Contained(f"peer {peer.short}", "link", self.blame)
        self._shown: tuple[Present, ...] = ()

    # What others ask.

    @property
    def linked(self) -> bool:
        """True while at least one link carries or stands by."""
        return len(self._links) > 0

    @property
    def in_use(self) -> bool:
        """True while a stream is open that is not of the mesh's own."""
        return self._held.streams is not None and self._held.streams.in_use

    @property
    def session_id(self) -> bytes:
        """Another one whenever streams could not survive; empty without a session."""
        return self._held.session_id

    @property
    def hears(self) -> bool:
        """True when something was heard from the peer a moment ago."""
        return any(link.lively for link in self.present())

    def present(self) -> tuple[Present, ...]:
        """The links that there are, as the planning of attempts sees them."""
        streams = self._held.streams
        return self._links.present(streams.session) if streams is not None else ()

    def test_links(self) -> None:
        """End those that do not answer at once: they may be dead without knowing it."""
        if self._owner is not None and self._held.streams is not None:
            self._owner.start_for(
                f"peer {self.peer.short}",
                self._links.test(self._look_again),
                name="test links",
                blame=self.blame,
            )

    def carries(self, link: Link) -> bool:
        """True once `link` is attached."""
        return self._links.has(link)

    def status(self) -> PeerStatus:
        """A snapshot."""
        streams = self._held.streams
        paths = self._links.statuses(streams.session) if streams is not None else []
        return self.view.status(paths, session=streams is not None, grace=self._held.grace)

    def open_stream(self, service: str, metadata: Mapping[str, MetadataValue], *, bulk: bool) -> MeshStream:
        """Raises Broken without a session, Busy when too many streams are open."""
        if self._held.streams is None:
            raise self._not_connected()
        return self._held.streams.open(service, metadata, bulk=bulk)

    async def ping(self, within: float) -> tuple[float, PathStatus]:
        """Round trip in seconds over the link that carries data. Raises Broken."""
        streams = self._held.streams
        selected = self._links.selected(streams.session) if streams is not None else None
        if streams is None or selected is None:
            raise self._not_connected()
        number, path = selected
        rtt = await self._links.ping(streams.session, number, within)
        if rtt is None:
            raise Broken(f"no answer from {self.view.label} within {within:g} s")
        return rtt, path

    def _not_connected(self) -> Broken:
        return Broken(f"not connected to {self.view.label}: {self.view.last_error or 'no link yet'}")

    def close(self, code: Code, reason: str) -> None:
        """Say goodbye on every link and end the session: its streams break, with `reason`."""
        if self._held.streams is not None:
            self._held.streams.session.goodbye(code, reason)
        self._end_session(f"{OWN_GOODBYE}: {reason}")

    def blame(self, fault: Fault) -> None:
        """Something that the peer caused failed here in a way that nobody foresaw."""
        self._node.faults.blame(self.peer, self._node.now(), fault.what)

    def take_fault(self) -> MeshdError | None:
        """What the peer broke since this was asked last; a new link would most likely end the same way."""
        fault, self._fault = self._fault, None
        return fault

    # Life.

    async def serve(self) -> None:
        """Own timers and the handlers of incoming streams until cancelled."""
        async with Owner() as owner:
            self._owner = owner
            self._begun.set()
            try:
                await self._alarm.run()
            finally:  # before the owner ends: it takes no new handlers from here on
                self._owner = None
                self._drop_session("this node is stopping", PeerState.KNOWN)

    async def run_link(self, link: Link) -> None:
        """As `_live_on`, for one of few links at once: one more is closed."""
        release = self._room.take(self.peer)
        if release is None:
            LOG.info("link_surplus", peer=self.peer.short, link=link.info.kind.value)
            await link.aclose()
            return
        try:
            await self._live_on(link)
        finally:
            release()

    async def _live_on(self, link: Link) -> None:
        """Own `link`: greet, attach, carry; returns when it has ended.

        Raises Refused when either side says no, RemoteProtocolError when the peer broke the rules.
        """
        driver: LinkDriver | None = None
        agreed = b""

        def settle(mine: Hello, theirs: Hello) -> None:
            nonlocal agreed
            agreed = self._settle(mine, theirs)

        try:
            await self._admission.check_faults(link)
            with self._contained:
                await self._begun.wait()
                hello, rest = await greet(link, self._admission, leader=self.leads, settle=settle)
                self._admission.check_banned(link)  # a ban may have come during the last flight
                driver = self._new_driver(link, agreed)
                self._attach(driver, hello)
                await driver.carry(rest)
        except (RemoteProtocolError, Fault) as error:
            self.view.last_error = error.what
            self._fault = error
            if isinstance(error, RemoteProtocolError):
                LOG.warning("peer_broke_protocol", peer=self.peer.short, why=error.what)
                self._node.faults.broke(self.peer, self._node.now(), error.what)
            if driver is not None and self._held.has(driver.session):
                self._end_session(f"protocol error: {error.what}")
            raise
        except (Broken, EndOfStream, Refused) as error:
            self.view.last_error = error.what
            if isinstance(error, Refused):
                raise
        finally:
            try:
                if driver is not None:
                    self._detach(driver)
            finally:
                await link.aclose()

    def _ring(self) -> None:
        """A timer of the session is due."""
        streams = self._held.streams
        if streams is not None:
            now = self._node.now()
            if self._held.never_linked(now):
                self._end_session("no link came for the new session", PeerState.LOST)
            self._dispatch(streams.session, streams.session.handle_timeout(now))
            self._links.wake()
            if now - self._chosen_at >= CHOOSE_SECONDS:
                self._chosen_at = now
                self._choose()
                self._look_at_links()
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarm.set(self._held.next_timeout())

    def _rearm(self, at: float) -> None:
        """The session wants its timer at `at`, for an acknowledgement that waits for company say.

        It may come late by as much as it was to wait, a little: moving it each time costs more.
        """
        armed = self._alarm.at
        if armed is None or armed > at + min(at - self._node.now(), TIMER_SLACK):
            self._set_alarm()

    def _settle(self, mine: Hello, theirs: Hello) -> bytes:
        """Begin the session that the Hellos agree on, unless it is there; returns its id."""
        self._admission.settled(theirs)
        session_id, begins = self._held.agreed(mine, theirs)
        if not begins:
            return session_id
        self._end_session("the peer has lost the session")
        if self._owner is None:
            raise Broken("this node is stopping")
        self._held.begin(session_id, grace=min(theirs.grace, mine.grace), owner=self._owner)
        self.view.set_state(PeerState.CONNECTING)
        self._set_alarm()
        return session_id

    # Links.

    def _new_driver(self, link: Link, session_id: bytes) -> LinkDriver:
        return self._links.driver(
            link,
            self._held.session(session_id),
            dispatch=self._dispatch,
            deliver=self._deliver,
            rearm=self._rearm,
            contained=self._contained,
        )

    def _attach(self, driver: LinkDriver, hello: Hello) -> None:
        link = driver.link
        happened = self._links.attach(driver)
        self.view.met(hello, link.info.member)
        self._held.linked()
        self._dispatch(driver.session, happened)
        self.view.link_up(link.info)
        self._look_again()
        self._set_alarm()
        self._node.changed()
        self._node.link_made(self.peer, hello, link.info)

    def _detach(self, driver: LinkDriver) -> None:
        happened = self._links.detach(driver)
        if happened is None:
            return
        self._dispatch(driver.session, happened)
        self.view.link_lost(driver.link.info, driver.why)
        if not self.linked and self._held.streams is not None:
            self.view.set_state(PeerState.SUSPENDED)
        self._look_again()
        self._set_alarm()
        self._node.changed()

    def _choose(self) -> None:
        if self._held.streams is not None:
            session = self._held.streams.session
            self._dispatch(session, self._links.choose(session))

    def _look_again(self) -> None:
        self._choose()
        self._look_at_links()
        self._links.wake()

    def _look_at_links(self) -> None:
        present = self.present()
        if present != self._shown:
            self._shown = present
            self._dialling.links_changed()

    # Events.

    def _deliver(self, session: Session, stream_id: int, data: bytes | memoryview) -> None:
        streams = self._held.streams
        if streams is not None and session is streams.session:
            streams.deliver(stream_id, data)

    def _dispatch(self, session: Session, happened: Sequence[events.Event]) -> None:
        for event in happened:
            streams = self._held.streams
            if streams is None or session is not streams.session:
                return  # the end of an older session: its streams are broken already
            if type(event) is events.DataReceived:  # nearly all of them
                streams.deliver(event.stream_id, event.data)
                continue
            match event:
                case events.PongReceived() | events.LinkDead():
                    self._links.heard(event)
                case events.GoodbyeReceived(code=code, reason=reason):
                    self.view.said_goodbye(code, reason)
                    self._end_session(reason or "the peer said goodbye")
                    self._node.said_goodbye(self.peer, code)
                case events.SessionLost(reason=reason):
                    self._end_session(reason, PeerState.LOST)
                case events.Switched(link_id=link_id):
                    if link_id is not None:
                        self.view.carried()
                    self._dialling.links_changed()
                    self._node.changed()
                case _:
                    streams.feed(event, self.view.member)

    def _end_session(self, reason: str, state: PeerState = PeerState.KNOWN) -> None:
        """The session is over for both sides: its links go with it."""
        self._drop_session(reason, state)
        self._links.end(reason)

    def _drop_session(self, reason: str, state: PeerState) -> None:
        streams = self._held.drop()
        if streams is None:
            return
        self.view.last_error = reason
        self.view.set_state(state)
        streams.break_all(reason)
        self._look_at_links()
        self._set_alarm()
        self._node.changed()
