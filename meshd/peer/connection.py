"""The driver of one peer: links in, one durable session, streams out.

`run_link` owns one link from its greeting to its end, in the task of whoever made or took it in;
`serve` owns the session's timers and the handlers of streams that the peer opens. Decisions are made
elsewhere: which session goes on in mux/session_choice.py, which link carries data in peer/path_selection.py.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from meshd.base import log
from meshd.base.boundary import Contained, Fault
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.shares import LINKS
from meshd.base.slots import Slots
from meshd.base.tasks import Owner
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.link.interface import Link
from meshd.mux import events, session_choice
from meshd.mux.events import Code
from meshd.mux.session import Session
from meshd.peer.alarm import Alarm
from meshd.peer.dial_schedule import Present
from meshd.peer.greeting import greet, turn_away
from meshd.peer.interface import MetadataValue, PathStatus, PeerState, PeerStatus
from meshd.peer.link_driver import Carrier
from meshd.peer.links import Links
from meshd.peer.node import Node
from meshd.peer.path_selection import RELAYED
from meshd.peer.stream import MeshStream
from meshd.peer.streams import Streams
from meshd.wire.hello import Hello
from meshd.wire.native import NativeVersion, difference

CHALLENGE_SECONDS = 2.0  # an older incarnation that answers within this keeps the identity
CHOOSE_SECONDS = 1.0  # between two looks at which link should carry data, unless one comes or goes
TIMER_SLACK = 0.02  # seconds by which an acknowledgement may come late at most
LOG = log.get("peer")


class PeerConnection:
    """Everything this node has with one peer."""

    def __init__(self, node: Node, peer: PeerId) -> None:
        self._node = node
        self.peer = peer
        self._leader = node.peer > peer
        self._streams: Streams | None = None
        self._session_id = b""
        self._fresh = node.random(session_choice.HALF_BYTES)
        self._room = Slots(LINKS)
        self._links = Links(peer=peer, leads=self._leader, now=node.now)
        self._incarnation = b""
        self._alarm = Alarm(self._ring)
        self._chosen_at = 0.0
        self._owner: Owner | None = None
        self._begun = asyncio.Event()
        self._unlinked_until: float | None = None  # the grace of a session that no link has carried yet
        self._state = PeerState.KNOWN
        self._since = node.now()
        self.member: Member | None = None
        self.name = ""
        self.role = ""
        self.native: NativeVersion | None = None
        self.software = ""
        self.resumes = 0
        self.last_error = ""
        self.says_banned = ""
        self._stopped = ""
        self._grace = 0
        self._fault: MeshdError | None = None
        self._contained = Contained(f"peer {peer.short}", "link", self.blame)
        self.clock_offset: float | None = None
        self.dialling = False
        self.on_links: Callable[[], None] = lambda: None  # one came, went, fell silent, or is used now
        self.why_not_direct: Callable[[], str] = lambda: ""
        self._shown: tuple[Present, ...] = ()

    # What others ask.

    @property
    def linked(self) -> bool:
        """True while at least one link carries or stands by."""
        return len(self._links) > 0

    @property
    def leads(self) -> bool:
        """True on the side that decides which link carries data."""
        return self._leader

    @property
    def in_use(self) -> bool:
        """True while a stream is open that is not of the mesh's own."""
        return self._streams is not None and self._streams.in_use

    @property
    def session_id(self) -> bytes:
        """Another one whenever streams could not survive; empty without a session."""
        return self._session_id if self._streams is not None else b""

    @property
    def hears(self) -> bool:
        """True when something was heard from the peer a moment ago."""
        return any(link.lively for link in self.present())

    def present(self) -> tuple[Present, ...]:
        """The links that there are, as the planning of attempts sees them."""
        return self._links.present(self._streams.session) if self._streams is not None else ()

    def test_links(self) -> None:
        """End those that do not answer at once: they may be dead without knowing it."""
        if self._owner is not None and self._streams is not None:
            self._owner.start_for(
                f"peer {self.peer.short}",
                self._links.test(self._look_again),
                name="test links",
                blame=self.blame,
            )

    def carries(self, link: Link) -> bool:
        """True once `link` is attached."""
        return self._links.has(link)

    @property
    def state(self) -> PeerState:
        """As in PeerStatus."""
        return PeerState.CONNECTING if self._streams is None and self.dialling else self._state

    def status(self) -> PeerStatus:
        """A snapshot."""
        paths = self._links.statuses(self._streams.session) if self._streams is not None else []
        relayed = any(path.selected and path.link.path == RELAYED for path in paths)
        return PeerStatus(
            peer=self.peer,
            name=self.name,
            role=self.role,
            state=self.state,
            paths=tuple(paths),
            native=self.native,
            software=self.software,
            resumes=self.resumes,
            since=self._since,
            last_error=self.last_error,
            clock_offset=self.clock_offset,
            says_banned=self.says_banned,
            why_not_direct=self.why_not_direct() if relayed else "",
            grace=self._grace,
            stopped=self._stopped,
        )

    def open_stream(self, service: str, metadata: Mapping[str, MetadataValue], *, bulk: bool) -> MeshStream:
        """Raises Broken without a session, Busy when too many streams are open."""
        if self._streams is None:
            raise Broken(f"not connected to {self.label}: {self.last_error or 'no link yet'}")
        return self._streams.open(service, metadata, bulk=bulk)

    @property
    def label(self) -> str:
        """How people know the peer."""
        return self.name or self.peer.short

    async def ping(self, within: float) -> tuple[float, PathStatus]:
        """Round trip in seconds over the link that carries data. Raises Broken."""
        selected = self._links.selected(self._streams.session) if self._streams is not None else None
        if self._streams is None or selected is None:
            raise Broken(f"not connected to {self.label}: {self.last_error or 'no link yet'}")
        number, path = selected
        rtt = await self._links.ping(self._streams.session, number, within)
        if rtt is None:
            raise Broken(f"no answer from {self.label} within {within:g} s")
        return rtt, path

    def close(self, code: Code, reason: str) -> None:
        """Say goodbye on every link and end the session: its streams break with `reason`."""
        if self._streams is not None:
            self._streams.session.goodbye(code, reason)
        self._end_session(reason, PeerState.KNOWN)

    def refused(self, error: Refused) -> None:
        """The peer would not have a link with us."""
        self.last_error = error.what
        if error.code == "banned":
            self._banned(error.what)
        else:
            LOG.warning("peer_refuses", peer=self.peer.short, name=self.name, why=error.what, hint=error.hint)

    def _banned(self, why: str) -> None:
        """The peer holds this node for banned."""
        self.says_banned = why
        self._node.told_banned(self.peer, self.label, why)
        self._node.changed()

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
                self._drop_session("this node stops", PeerState.KNOWN)

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
        carrier: Carrier | None = None
        agreed = b""

        def settle(mine: Hello, theirs: Hello) -> None:
            nonlocal agreed
            agreed = self._settle(mine, theirs)

        try:
            if self._node.faults.refuses(self.peer, self._node.now()):
                await turn_away(link, _too_many_faults())
            with self._contained:
                await self._begun.wait()
                hello, rest = await greet(link, self, leader=self._leader, settle=settle)
                self.check_banned(link)  # a ban may have come during the last flight
                carrier = self._new_carrier(link, agreed)
                self._attach(carrier, hello)
                await carrier.carry(rest)
        except (RemoteProtocolError, Fault) as error:
            self.last_error = error.what
            self._fault = error
            if isinstance(error, RemoteProtocolError):
                LOG.warning("peer_broke_protocol", peer=self.peer.short, why=error.what)
                self._node.faults.broke(self.peer, self._node.now(), error.what)
            if carrier is not None and self._streams and carrier.session is self._streams.session:
                self._end_session(f"protocol error: {error.what}", PeerState.KNOWN)
            raise
        except (Broken, EndOfStream) as error:
            self.last_error = error.what
        except Refused as error:
            self.last_error = error.what
            raise
        finally:
            try:
                if carrier is not None:
                    self._detach(carrier)
            finally:
                await link.aclose()

    def _ring(self) -> None:
        """A timer of the session is due."""
        streams = self._streams
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
        streams = self._streams
        self._alarm.set(None if streams is None else streams.session.next_timeout() or self._unlinked_until)

    def _rearm(self, at: float) -> None:
        """The session wants its timer at `at`, for an acknowledgement that waits for company say.

        It may come late by as much as it was to wait, a little: moving it each time costs more.
        """
        armed = self._alarm.at
        if armed is None or armed > at + min(at - self._node.now(), TIMER_SLACK):
            self._set_alarm()

    # Greeting (greeting.Parley).

    def my_hello(self, theirs: Hello | None) -> Hello:
        """See greeting.Parley."""
        if theirs is None:
            return self._node.hello(current=self.session_id, fresh=self._fresh, chosen=b"")
        offer = session_choice.Offer(current=theirs.current or None, fresh=theirs.fresh)
        answer = session_choice.answer(
            offer, mine=self.session_id or None, salt=self._node.random(session_choice.HALF_BYTES)
        )
        return self._node.hello(current=b"", fresh=b"", chosen=answer.session_id)

    async def check_hello(self, theirs: Hello) -> None:
        """See greeting.Parley: one identity lives in one place."""
        if self._incarnation in (b"", theirs.incarnation):
            return
        remote = await self._links.first_answer(CHALLENGE_SECONDS)
        if remote is not None:
            raise Refused(
                f"this identity is in use at {remote}, which still answers",
                code="identity_in_use",
                hint="stop the other daemon; a copied state folder needs an identity of its own: "
                "`meshd leave --new-identity` there, then join again",
            )
        if self._incarnation != theirs.incarnation:  # else another of its links was quicker, and has begun
            self._end_session("replaced by a newer start of the same node", PeerState.KNOWN)

    def ban_entries(self) -> Sequence[bytes]:
        """See greeting.Parley."""
        return self._node.bans.entries()

    def learn_bans(self, entries: Sequence[bytes]) -> int:
        """See greeting.Parley."""
        return self._node.learn_bans(entries)

    def check_banned(self, link: Link) -> None:
        """See greeting.Parley."""
        why = self._node.why_banned(link.info.member)
        if why is not None:
            raise Refused(why, code="banned", hint="a banned node comes back with a new key and a new invite")

    def _settle(self, mine: Hello, theirs: Hello) -> bytes:
        """Begin the session that the Hellos agree on, unless it is there; returns its id."""
        self._incarnation = theirs.incarnation
        session_id = theirs.chosen if self._leader else mine.chosen
        if self._leader:
            verdict = session_choice.settle(session_id, current=self.session_id or None, fresh=self._fresh)
            if verdict is session_choice.Verdict.STALE:
                raise Broken("the peer answered for a session that has gone")
            if verdict is session_choice.Verdict.ATTACH:
                return session_id
            self._fresh = self._node.random(session_choice.HALF_BYTES)
        elif session_id == self.session_id:
            return session_id
        self._end_session("the peer has lost the session", PeerState.KNOWN)
        if self._owner is None:
            raise Broken("this node stops")
        self._session_id = session_id
        self._grace = min(theirs.grace, mine.grace)
        session = Session(
            side="leader" if self._leader else "follower",
            session_id=session_id,
            config=self._node.mux_config(self._grace),
            budget=self._node.budget,
        )
        self._streams = Streams(
            session=session,
            peer=self.peer,
            node=self._node,
            owner=self._owner,
            wake=self._links.wake,
            pass_on=partial(self._links.pass_on, session),
            blame=self.blame,
        )
        self._unlinked_until = self._node.now() + self._grace
        self._set_state(PeerState.CONNECTING)
        self._set_alarm()
        return session_id

    # Links.

    def _new_carrier(self, link: Link, session_id: bytes) -> Carrier:
        if self._streams is None or self._session_id != session_id:
            raise Broken("the session ended during the greeting")
        return self._links.carrier(
            link,
            self._streams.session,
            dispatch=self._dispatch,
            deliver=self._deliver,
            rearm=self._rearm,
            contained=self._contained,
        )

    def _compare(self, native: NativeVersion) -> None:
        """Say once what the build of a node that was not seen with it is to ours."""
        found = difference(self._node.facts.native, native) if native != self.native else None
        self.native = native
        if found is not None:
            tell = LOG.info if found.fits else LOG.warning
            tell("native_differs", peer=self.peer.short, name=self.name, why=found.what, hint=found.hint)

    def _attach(self, carrier: Carrier, hello: Hello) -> None:
        link = carrier.link
        happened = self._links.attach(carrier)
        self.name, self.role = naming.shown(hello.name), hello.role
        self._compare(hello.native)
        self.software = hello.software
        self.member = link.info.member
        self.clock_offset = float(hello.clock - self._node.wall_clock())
        self.last_error = self.says_banned = self._stopped = ""
        self._unlinked_until = None
        self._dispatch(carrier.session, happened)
        LOG.info(
            "link_up",
            peer=self.peer.short,
            name=self.name,
            link=link.info.kind.value,
            remote=link.info.remote,
        )
        self._look_again()
        self._set_alarm()
        self._node.changed()
        self._node.on_link(self.peer, hello, link.info)

    def _detach(self, carrier: Carrier) -> None:
        happened = self._links.detach(carrier)
        if happened is None:
            return
        self._dispatch(carrier.session, happened)
        LOG.info(
            "link_lost",
            peer=self.peer.short,
            name=self.name,
            link=carrier.link.info.kind.value,
            why=carrier.why or self.last_error,
        )
        if not self.linked and self._streams is not None:
            self._set_state(PeerState.SUSPENDED)
        self._look_again()
        self._set_alarm()
        self._node.changed()

    def _carried(self) -> None:
        """A link carries data: one that is only attached may wait for the leader to say so."""
        if self._state is PeerState.SUSPENDED:
            self.resumes += 1
        self._set_state(PeerState.CONNECTED)

    def _choose(self) -> None:
        if self._streams is not None:
            session = self._streams.session
            self._dispatch(session, self._links.choose(session))

    def _look_again(self) -> None:
        self._choose()
        self._look_at_links()
        self._links.wake()

    def _look_at_links(self) -> None:
        present = self.present()
        if present != self._shown:
            self._shown = present
            self.on_links()

    # Events.

    def _deliver(self, session: Session, stream_id: int, data: bytes) -> None:
        streams = self._streams
        if streams is not None and session is streams.session:
            streams.deliver(stream_id, data)

    def _dispatch(self, session: Session, happened: Sequence[events.Event]) -> None:
        for event in happened:
            streams = self._streams
            if streams is None or session is not streams.session:
                return  # the end of an older session: its streams are broken already
            if type(event) is events.DataReceived:  # nearly all of them
                streams.deliver(event.stream_id, event.data)
                continue
            match event:
                case events.PongReceived() | events.LinkDead():
                    self._links.heard(event)
                case events.GoodbyeReceived(code=code, reason=reason):
                    self._end_session(reason or "the peer said goodbye", PeerState.KNOWN)
                    if code == Code.SHUTDOWN:
                        self._stopped = reason or "it was stopped"
                    if code == Code.BANNED:
                        self._banned(reason or "this node is banned")
                    self._node.on_goodbye(self.peer, code)
                case events.SessionLost(reason=reason):
                    self._end_session(reason, PeerState.LOST)
                case events.Switched(link_id=link_id):
                    if link_id is not None:
                        self._carried()
                    self.on_links()
                    self._node.changed()
                case _:
                    streams.feed(event, self.member)

    def _end_session(self, reason: str, state: PeerState) -> None:
        """The session is over for both sides: its links go with it."""
        self._drop_session(reason, state)
        self._links.end(reason)

    def _drop_session(self, reason: str, state: PeerState) -> None:
        streams, self._streams = self._streams, None
        self._unlinked_until = None
        if streams is None:
            return
        self.last_error = reason
        self._set_state(state)
        streams.break_all(reason)
        self._look_at_links()
        self._set_alarm()
        self._node.changed()

    def _set_state(self, state: PeerState) -> None:
        if state is not self._state:
            self._state = state
            self._since = self._node.now()
            self._node.changed()


def _too_many_faults() -> Refused:
    return Refused(
        "too much of this node's work failed at the other one",
        code="faults",
        hint="read the log of the other node (`meshd logs`); it accepts links again after one minute",
    )
