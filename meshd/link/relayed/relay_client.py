"""This node's relays: a control connection to each, kept alive, and mail over them.

To its own relays a node stays connected, so that it can be called there. Relays of other nodes are visited
when one of those is called, and left after a while.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from meshd.base.admission import FairQueue
from meshd.base.backoff import Backoff
from meshd.base.errors import Broken, MeshdError, Refused
from meshd.base.fault_boundary import contained
from meshd.base.log import get
from meshd.base.peer_limits import MAIL_WAITING, RELAY_VISITS
from meshd.base.tasks import Owner
from meshd.identity.invite import RelayHint, relay_url
from meshd.identity.keys import PeerId
from meshd.link.relayed.control_connection import ControlConnection, RelayTrouble
from meshd.link.relayed.http_proxy import Allow
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.tls import dialer_context
from meshd.wire.dialable import trusted
from meshd.wire.relay import MAX_BOX_SECONDS, MAX_MAIL_BYTES, Mail, Ring
from meshd.wire.versions import VERSION_CODE, checked_hint

Asker = tuple[Hashable, Hashable]  # issuer, peer
BACKOFF = Backoff(first=0.25, factor=2.0, most=8.0, jitter=0.5)
REPLACED_SECONDS = 30.0  # another process has our key: do not fight about the place
_REACH_SECONDS = 6.0  # that a caller waits for a connection
VISIT_SECONDS = 60.0  # without use
MAX_VISITS = RELAY_VISITS.most
_STEADY_SECONDS = 10.0  # a connection that held this long was a good one
_log = get("relay")


class Line:
    """One relay and the connection to it, when there is one."""

    def __init__(self, relay: RelayHint, *, own: bool, asker: Asker) -> None:
        self.relay = relay
        self.asker = asker  # issuer and peer for which a relay that is not ours is visited
        self.task: asyncio.Task[None] | None = None
        self.own = own
        self.control: ControlConnection | None = None
        self.why = "not connected yet"
        self.tries = 0
        self.changed = asyncio.Event()  # replaced by a new one whenever it was set
        self.wanted = asyncio.Event()  # somebody waits: try at once
        self.used_at = asyncio.get_running_loop().time()

    def end(self, why: str) -> None:
        """End the visit."""
        self.tell(None, why)
        if self.task is not None:
            self.task.cancel()

    def tell(self, control: ControlConnection | None, why: str) -> None:
        """Tell those who wait for the line its new state."""
        self.control, self.why = control, why
        self.tries += 1
        self.changed.set()
        self.changed = asyncio.Event()


def gives_way(visits: Sequence[Line], asker: Asker) -> Line | None:
    """Choose the visit to close so that `asker` fits, or None to refuse `asker`.

    Takes the largest issuer, there the largest peer, there a visit without a connection, or the least
    recently used.
    """
    issuers = Counter([asker[0], *(line.asker[0] for line in visits)])
    issuer = max(issuers, key=issuers.__getitem__)
    visits = [line for line in visits if line.asker[0] == issuer]
    peers = Counter([*([asker] if asker[0] == issuer else []), *(line.asker for line in visits)])
    most = max(peers, key=peers.__getitem__)
    if most == asker and peers[most] > 1:
        return None
    visits = [line for line in visits if line.asker == most] or visits
    return min(visits, key=lambda line: (line.control is not None, line.used_at), default=None)


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter from `receive_mail`: `box` is the mailbox it was sent to, or empty; `relay` brought it."""

    sender: PeerId
    box: bytes
    blob: bytes
    relay: RelayHint


@dataclass(frozen=True, slots=True)
class RelayState:
    """A relay's state for status: `seen` is our address as the relay sees it, `why` the last trouble while
    not connected.
    """

    relay: RelayHint
    connected: bool
    seen: str
    why: str


class RelayClient:
    """`relays`: our own. `relays_of`: those of a peer's record, at addresses that `allow` lets pass.

    `issuer_of`: in whose share a peer counts; None for all that are unknown.
    `serve` must run for anything to work.
    """

    def __init__(
        self,
        relays: Sequence[RelayHint],
        handshake: Callable[[], HandshakeContext],
        *,
        relays_of: Callable[[PeerId], Sequence[RelayHint]] = lambda _peer: (),
        allow: Allow = lambda _caller: (),
        issuer_of: Callable[[PeerId], Hashable] = lambda _peer: None,
        environ: Mapping[str, str] = os.environ,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self.own = tuple(dict.fromkeys(relays))
        self._handshake = handshake
        self._relays_of = relays_of
        self._allow = allow
        self._issuer_of = issuer_of
        self.environ = environ
        self._rng = rng
        self.context = dialer_context()
        self._lines: dict[RelayHint, Line] = {}
        self._owner: Owner | None = None
        self._mail: FairQueue[Letter] = FairQueue(MAIL_WAITING.most)
        self._has_mail = asyncio.Event()
        self._boxes: dict[bytes, float] = {}  # until, in loop time
        self._lasting: frozenset[bytes] = frozenset()  # of these, those for browsers
        self.on_ring: Callable[[ControlConnection, Ring], bool] | None = None  # False: nobody takes the call
        self.on_browser: Callable[[ControlConnection, Ring], bool] | None = None  # of a box for browsers

    # --- life

    async def serve(self) -> None:
        """Stay connected to our own relays until cancelled."""
        async with Owner() as owner:
            self._owner = owner
            try:
                for relay in self.own:
                    self._line(relay)
                await asyncio.Event().wait()
            finally:
                self._owner = None
                self._lines.clear()

    @property
    def in_use(self) -> bool:
        """True while `serve` runs."""
        return self._owner is not None

    def states(self) -> tuple[RelayState, ...]:
        """Return the states of our own relays, for status and netcheck."""
        return tuple(self._state(relay) for relay in self.own)

    def urls(self) -> tuple[str, ...]:
        """Return the relays for this node's record: ours, those that are connected first."""
        ordered = sorted(self.states(), key=lambda state: not state.connected)
        return tuple(relay_url(state.relay) for state in ordered)

    def addresses_changed(self) -> None:
        """Check each connection, which may have died with an address, and retry waiting ones at once."""
        for line in self._lines.values():
            line.wanted.set()
            if line.control is not None:
                line.control.check()

    # --- mail

    async def send_mail(
        self, to: PeerId | bytes, blob: bytes, *, relays: Sequence[RelayHint] | None = None
    ) -> None:
        """Hand `blob` (6 KiB at most) to a peer, or to a mailbox (16 bytes, `JoinKeys.mailbox`).

        By default over the relays of the peer (or our own, if none is known), those that we are connected to
        first, until one has handed it over. Returns when at least one has taken it; it may arrive twice.
        Raises Broken.
        """
        if len(blob) > MAX_MAIL_BYTES:
            raise Broken(f"a letter of {len(blob)} bytes; relays accept at most {MAX_MAIL_BYTES}")
        where = self.routes(to) if relays is None else relays
        kept, why = False, "no relay is known for this peer"
        raw = to.raw if isinstance(to, PeerId) else to
        for relay in where:
            try:
                control = await self.reach(relay, to)
                if await control.post(raw, blob):
                    return
                kept = True
            except (Broken, Refused) as error:
                why = error.what
        if not kept:
            raise Broken(f"cannot send through a relay: {why}")

    async def receive_mail(self) -> Letter:
        """Return the next letter. Its sender is the relay's word only: letters must be signed inside."""
        while not self._mail:
            self._has_mail.clear()
            await self._has_mail.wait()
        return self._mail.pop()

    async def set_boxes(self, boxes: Mapping[bytes, float], lasting: frozenset[bytes] = frozenset()) -> None:
        """Set the mailboxes to keep open at our own relays, with the seconds that each lives from now.

        `lasting`: those that are for browsers. All are opened again with each new connection. Those that were
        set before and are not given are shut.
        """
        now = asyncio.get_running_loop().time()
        gone = self._boxes.keys() - boxes.keys()
        self._boxes = {box: now + seconds for box, seconds in boxes.items() if seconds >= 1}
        self._lasting = lasting
        for relay in self.own:
            line = self._lines.get(relay)
            if line is None or line.control is None:
                continue
            try:
                for box in gone:
                    await line.control.shut_box(box)
                await self._open_boxes(line.control)
            except MeshdError:
                continue  # it has just broken; the next connection opens them

    # --- for RelayLinks

    def routes(self, to: PeerId | bytes) -> tuple[RelayHint, ...]:
        """Return relays over which `to` may be reached, best first: shared and connected, then the rest."""
        theirs = tuple(self._relays_of(to)) if isinstance(to, PeerId) else ()
        if not theirs:
            theirs = self.own  # nothing is known: it may well be at one of ours
        now = self._connected()
        return tuple(
            sorted(dict.fromkeys(theirs), key=lambda relay: (relay not in now, relay not in self.own))
        )

    async def reach(self, relay: RelayHint, callee: PeerId | bytes = b"") -> ControlConnection:
        """Return a live connection to `relay`, made now if need be, to call `callee`; 6 s at most. Raises
        Broken.
        """
        line = self._lines.get(relay) or self._line(relay, callee)
        line.used_at = asyncio.get_running_loop().time()
        tries = line.tries
        try:
            async with asyncio.timeout(_REACH_SECONDS):
                while line.control is None:
                    if line.tries > tries:
                        raise RelayTrouble(f"relay `{relay.place}`: {line.why}")
                    changed = line.changed
                    line.wanted.set()
                    await changed.wait()
        except TimeoutError:
            raise RelayTrouble(f"relay `{relay.place}` does not answer") from None
        return line.control

    # --- RelayHandler

    def rung(self, control: ControlConnection, ring: Ring) -> None:
        """Handle a call from somebody."""
        take = self.on_browser if ring.box in self._lasting else self.on_ring
        if take is None or not take(control, ring):
            control.hang_up(ring.ticket)

    def mail(self, control: ControlConnection, mail: Mail) -> None:
        """Queue a letter that came."""
        letter = Letter(PeerId(mail.sender), mail.box, mail.blob, control.relay)
        self._mail.put(letter, letter.relay, self._issuer_of(letter.sender), letter.sender)
        self._has_mail.set()

    # --- inside

    def _connected(self) -> set[RelayHint]:
        return {relay for relay, line in self._lines.items() if line.control is not None}

    def _state(self, relay: RelayHint) -> RelayState:
        line = self._lines.get(relay)
        control = line.control if line is not None else None
        seen = control.ready.seen if control is not None and control.ready is not None else ""
        return RelayState(relay, control is not None, seen, line.why if line is not None else "")

    def _line(self, relay: RelayHint, callee: PeerId | bytes = b"") -> Line:
        if self._owner is None or not self._owner.is_open:
            raise RelayTrouble("relays are not in use")
        own = relay in self.own
        asker = (self._issuer_of(callee) if isinstance(callee, PeerId) else None, callee)
        if not own:
            self._make_room(asker)
        line = self._lines[relay] = Line(relay, own=own, asker=asker)
        line.task = self._owner.start_for(
            f"relay {relay.place}", self._keep(line), name=f"relay {relay.place}"
        )
        return line

    def _make_room(self, asker: tuple[Hashable, Hashable]) -> None:
        visits = [line for line in self._lines.values() if not line.own]
        if len(visits) < MAX_VISITS:
            return
        gone = gives_way(visits, asker)
        if gone is None:
            raise RelayTrouble("too many relays of that node are in use")
        del self._lines[gone.relay]
        gone.end("it was closed to make room for others")

    async def _keep(self, line: Line) -> None:
        """Run the whole life of a line: connect, stay, reconnect; a visit ends when it is not used."""
        loop = asyncio.get_running_loop()
        attempt = 0
        try:
            while True:
                line.wanted.clear()
                began = loop.time()
                rest = await self._one_try(line)
                if not line.own and (rest or loop.time() - line.used_at > VISIT_SECONDS):
                    return
                attempt = 0 if loop.time() - began > _STEADY_SECONDS else attempt + 1
                seconds = BACKOFF.delay(attempt, self._rng())
                try:
                    async with asyncio.timeout(max(seconds, rest)):
                        await asyncio.sleep(min(0.2, seconds))
                        await line.wanted.wait()
                except TimeoutError:
                    continue
        finally:
            if self._lines.get(line.relay) is line:
                del self._lines[line.relay]
            line.tell(None, line.why)

    async def _one_try(self, line: Line) -> float:
        """Run one connection; an unforeseen failure counts as that relay's, which is tried again."""
        try:
            place = f"relay {line.relay.place}"
            return await contained(self._connection(line), source=place, name="connection")
        except MeshdError as error:
            line.tell(None, error.what)
            return 0.0 if line.own else 1.0

    async def _connection(self, line: Line) -> float:
        """Run one connection, from its attempt to its end; return the least seconds to keep away."""
        handshake = self._handshake()
        try:
            control = await ControlConnection.open(
                line.relay,
                handshake,
                self,
                context=self.context,
                environ=self.environ,
                allow=trusted if line.own else self._allow,
            )
        except (MeshdError, OSError, TimeoutError) as error:
            why = _reason(error, handshake.credentials.key.peer, line.relay.key)
            if why != line.why:
                _log.warning("relay_unreachable", remote=line.relay.place, why=why)
            line.tell(None, why)
            return 0.0 if line.own else 1.0
        line.tell(control, "")
        _log.info("relay_connected", remote=line.relay.place)
        async with Owner() as owner:
            if line.own:
                owner.start(self._greet(control), name="relay boxes")
            else:
                owner.start(self._visit(line, control), name="relay visit")
            await control.run()
            owner.cancel()
        line.tell(None, control.why_over)
        _log.info("relay_lost", remote=line.relay.place, why=control.why_over)
        return REPLACED_SECONDS if control.replaced else 0.0

    async def _greet(self, control: ControlConnection) -> None:
        try:
            await self._open_boxes(control)
        except MeshdError:
            return  # it is over already

    async def _open_boxes(self, control: ControlConnection) -> None:
        now = asyncio.get_running_loop().time()
        for box, until in self._boxes.items():
            if until - now >= 1:
                seconds = min(int(until - now), MAX_BOX_SECONDS)
                await control.open_box(box, seconds, lasting=box in self._lasting)

    async def _visit(self, line: Line, control: ControlConnection) -> None:
        loop = asyncio.get_running_loop()
        while True:
            left = line.used_at + VISIT_SECONDS - loop.time()
            if left <= 0:
                break
            await asyncio.sleep(left)
        await control.aclose()


def _reason(error: Exception, here: PeerId, relay: PeerId) -> str:
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError):
        plain = os.strerror(error.errno) if error.errno else ""  # asyncio's own text has addresses in it
        return (plain or error.strerror or str(error)).lower()
    if isinstance(error, Refused) and error.code == VERSION_CODE:
        return f"{error.what}; {checked_hint(error.hint, here.short, relay.short)}"
    return str(error)
