"""Links over paths that ICE finds: offers and answers over signals, for every kind that encrypts such a path.

One object is dialler and listener, because both share the signals: `serve` sorts what comes into offers,
which it answers, and answers, which a dial waits for. Candidates travel as they are found: the offer goes out
with this machine's own addresses at once, what STUN servers and a port mapping add follows. When both sides
dial at once, both attempts may succeed; the peer layer keeps one link of each kind (peer/links.py).

A kind (webrtc/links.py, quic/over_ice.py) brings the session that a try is about. Its libraries are imported
at the first dial or offer, in a thread.
"""

import asyncio
import ipaddress
import secrets
import string
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from meshd.base.admission import Rates
from meshd.base.errors import Broken, Closed, MeshdError, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.log import get
from meshd.base.peer_limits import ATTEMPTS, ICE_KNOWN, OFFERS, OFFERS_OF_PEER
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import PeerId
from meshd.identity.proof import Proven
from meshd.link.interface import (
    Accept,
    DialError,
    DialFailure,
    LinkKind,
    MayDial,
    Signals,
    Transport,
)
from meshd.link.net import local_addresses
from meshd.link.net.local_addresses import path_between
from meshd.link.net.stun import stun_server
from meshd.link.net.udp_sockets import Address, OpenSocket, UdpSocket
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenLink,
    RawPipe,
    dial_error,
    prove_accepted,
    prove_dialled,
    proven_link,
)
from meshd.wire.address import Candidate, CandidateKind, order
from meshd.wire.dialable import Dialable, Source
from meshd.wire.signal import (
    ATTEMPT_BYTES,
    MAX_OFFERED,
    Answer,
    More,
    Offer,
    OfferGone,
    OfferSignal,
    Terms,
    decode_offer,
)
from meshd.wire.stun import Endpoint

if TYPE_CHECKING:
    from meshd.link.ice.agent import IcePath, Pace

_ATTEMPT_SECONDS = 10.0  # signals, ICE, DTLS, SCTP and proof together
MAX_ANSWERING = OFFERS.most
MAX_ANSWERING_ONE = OFFERS_OF_PEER.most
TRICKLE_SECONDS = 0.05  # addresses found within so much of the first go out together
_LETTERS = string.ascii_letters + string.digits
_log = get("link")


class IcePipe(RawPipe, Protocol):
    """A pipe over a path that ICE found."""

    def widen(self) -> None:
        """Open full windows: the other side has proven who it is."""
        ...

    def abort(self) -> None:
        """Drop the pipe at once."""
        ...


class IceSession(ABC):
    """One side of one try: bind sockets (`ice.open`), tell the terms, `connect` with the other side's.

    `pipe` is there after `connect` at the latest, and `binding` of the proof. Call `shut` in the end.
    """

    ice: "IcePath"
    binding = b""
    pipe: IcePipe | None = None

    @property
    @abstractmethod
    def fingerprint(self) -> bytes:
        """The SHA-256 of our certificate, for the terms."""

    @property
    def pair(self) -> tuple[Address, Address, CandidateKind | None] | None:
        """Our address, theirs, and the kind that they announced."""
        return self.ice.pair

    @abstractmethod
    async def connect(self, terms: Terms, places: Sequence[Dialable]) -> None:
        """Find a path to one of `places` and encrypt it. Raises Broken; the caller sets the time limit."""

    @abstractmethod
    def shut(self) -> list[asyncio.Task[None]]:
        """End everything at once; return tasks that end in the next turns. Idempotent."""


def checkable(offered: Iterable[Candidate], *, hosts: Sequence[str]) -> list[Candidate]:
    """Return addresses worth checking, best first: UDP, of a family that one of `hosts` (ours) has.

    wire/dialable.py decides which of them may be sent to. Relays' ports belong to another kind of link.
    """
    families = {ipaddress.ip_address(host).version for host in hosts}
    return [
        candidate
        for candidate in order(offered)
        if candidate.proto == "udp" and candidate.kind != "relay" and candidate.ip.version in families
    ][:MAX_OFFERED]


def path_of(local: str, remote: str, remote_kind: CandidateKind | None) -> str:
    """Return LinkInfo.path of a pair: `local` and `remote` are hosts, `remote_kind` is the kind they
    announced.

    `mapped`: through a port that a router was asked for. `punched`: both sides sent through a NAT. A side
    that itself has a public address calls the path `public`, whichever side it is.
    """
    path = path_between(local, remote)
    if path != "public":
        return path
    if remote_kind == "mapped":
        return "mapped"
    if remote_kind == "host" or ipaddress.ip_address(local).is_global:
        return "public"
    return "punched"


Extra = Callable[[Sequence[Candidate]], Awaitable[Sequence[Candidate]]]


@dataclass(slots=True, eq=False)
class Attempt:
    """One side of one try."""

    peer: PeerId
    id: bytes
    session: IceSession
    hosts: tuple[str, ...]
    terms: Terms
    answer: asyncio.Future[Terms]
    task: asyncio.Task[None] | None = None  # that answers an offer


class IceLinks(ABC):
    """Makes and takes in links. `serve` must run for dials to be answered.

    `stun`: servers as `host:port` or `host`, asked at once; none: only this machine's own addresses are
    offered. `extra(bases)` may add addresses that lead to `bases` (a port mapping), whenever it has them.
    `hosts` says which addresses of this machine to use, `may_dial` which of the other side's.
    """

    transport: Transport  # a subclass says both
    kind: LinkKind

    def __init__(
        self,
        handshake: Callable[[], HandshakeContext],
        signals: Signals,
        stun: Sequence[str] = (),
        *,
        extra: Extra | None = None,
        hosts: Callable[[], Sequence[str]] = local_addresses.hosts,
        open_socket: OpenSocket = UdpSocket,
        may_dial: MayDial | None = None,
    ) -> None:
        self._handshake = handshake
        self._may_dial = may_dial
        self._signals = signals
        self._stun = [stun_server(text) for text in stun]
        self._extra = extra
        self._hosts = hosts
        self._open_socket = open_socket
        self._owner: Owner | None = None
        self._dials: dict[tuple[PeerId, bytes], Attempt] = {}
        self._answering: dict[tuple[PeerId, bytes], Attempt] = {}
        self._seen: OrderedDict[tuple[PeerId, bytes], None] = OrderedDict()
        self._begins = Rates(ATTEMPTS)
        self._paces: dict[PeerId, Pace] = {}

    # --- what a kind brings

    @abstractmethod
    async def _session(self, *, dialler: bool, user: str, password: str) -> IceSession:
        """Create a session; import what it needs."""

    # --- both sides

    def candidates(self) -> Sequence[Candidate]:
        """Return no candidates: each attempt has its own ports, told in its offer."""
        return ()

    # --- dialling

    async def dial(self, peer: PeerId, candidates: Sequence[Dialable] = ()) -> ProvenLink:
        """Meet the peer by signals; at most 10 s. The candidates of its record are not used.

        Raises Refused when the peer said why not, else DialError.
        """
        place = f"node {peer}"
        attempt: Attempt | None = None
        pipe: IcePipe | None = None
        try:
            async with asyncio.timeout(_ATTEMPT_SECONDS):
                # Prepare sockets and terms, and send the offer.
                attempt = await self._prepare(peer, secrets.token_bytes(ATTEMPT_BYTES), dialler=True)
                self._dials[peer, attempt.id] = attempt
                await self._offer(attempt)
                # Wait for the answer, connect, and prove both ends.
                pipe = await self._meet(attempt)
                proven = await prove_dialled(
                    pipe,
                    handshake=self._handshake(),
                    expect=peer,
                    binding=attempt.session.binding,
                )
                pipe.widen()
                return self._link(attempt, pipe, proven, dialled=True)
        except (MeshdError, OSError) as error:
            # On failure, close what was opened; the peer may still be waiting for us.
            if pipe is not None:
                await pipe.aclose()
            raise dial_error(error, kind=self.kind, place=place) from error
        except asyncio.CancelledError:
            if pipe is not None:
                pipe.abort()
            raise
        finally:
            if attempt is not None:
                self._dials.pop((peer, attempt.id), None)
                if pipe is None:
                    attempt.session.shut()
                    self._say_gone(attempt)

    async def _offer(self, attempt: Attempt) -> None:
        try:
            offer = Offer(attempt=attempt.id, terms=attempt.terms, seconds=_ATTEMPT_SECONDS)
            await self._signals.send(attempt.peer, offer.encode())
        except Broken as error:
            raise DialError(
                f"cannot send an offer: {error.what}", kind=self.kind, failure=DialFailure.UNREACHABLE
            ) from error

    async def _prepare(self, peer: PeerId, number: bytes, *, dialler: bool) -> Attempt:
        """Prepare a session with its own sockets and terms. Raises DialError."""
        user, password = _word(8), _word(24)
        session = await self._session(dialler=dialler, user=user, password=password)
        self._share_pace(peer, session)
        hosts = tuple(self._hosts()) or ("127.0.0.1",)
        own = session.ice.open(hosts, self._open_socket)
        if not own:
            raise DialError(
                "this machine has no address to send from", kind=self.kind, failure=DialFailure.UNREACHABLE
            )
        terms = Terms(
            user=user,
            password=password,
            fingerprint=session.fingerprint,
            candidates=tuple(own[:MAX_OFFERED]),
        )
        answer: asyncio.Future[Terms] = asyncio.get_running_loop().create_future()
        return Attempt(peer, number, session, tuple(candidate.host for candidate in own), terms, answer)

    def _share_pace(self, peer: PeerId, session: IceSession) -> None:
        """Let all attempts with one peer share its 50 checks a second, however many offers it sends."""
        pace = self._paces.pop(peer, session.ice.pace)
        self._paces[peer] = session.ice.pace = pace
        if len(self._paces) > ICE_KNOWN.most:
            del self._paces[next(iter(self._paces))]

    async def _meet(self, attempt: Attempt) -> IcePipe:
        """Connect after the answer; addresses found meanwhile are sent to the other side."""
        try:
            async with Owner() as owner:
                trickle = owner.start(self._trickle(attempt), name="ice-trickle")
                terms = await attempt.answer
                await attempt.session.connect(terms, self._places(attempt, terms.candidates))
                trickle.cancel()
        except BaseExceptionGroup as errors:
            raise first_error(errors) from None
        assert attempt.session.pipe is not None
        return attempt.session.pipe

    def _places(self, attempt: Attempt, offered: Sequence[Candidate]) -> Sequence[Dialable]:
        """Return the addresses that checks may go to. A signed offer may still be malicious."""
        may_dial = self._may_dial or local_addresses.by_interfaces(attempt.hosts)
        return may_dial(attempt.peer, checkable(offered, hosts=attempt.hosts), Source.SIGNAL)

    async def _trickle(self, attempt: Attempt) -> None:
        """Send what STUN servers and `extra` find, in few messages."""
        found: list[Candidate] = []
        news = asyncio.Event()

        def take(candidate: Candidate) -> None:
            if candidate not in found and len(found) < MAX_OFFERED:
                found.append(candidate)
                news.set()

        async with Owner() as owner:
            owner.start(attempt.session.ice.reflexive(self._stun, take), name="ice-stun")
            owner.start(self._ask_extra(attempt.terms.candidates, take), name="ice-extra")
            sent = 0
            while True:
                await news.wait()
                await asyncio.sleep(TRICKLE_SECONDS)
                news.clear()
                more = More(attempt=attempt.id, candidates=tuple(found[sent:]))
                sent = len(found)
                try:
                    await self._signals.send(attempt.peer, more.encode())
                except Broken:
                    continue  # the next ones may find a way

    async def _ask_extra(self, bases: Sequence[Candidate], take: Callable[[Candidate], None]) -> None:
        if self._extra is not None:
            for candidate in await self._extra(bases):
                take(candidate)

    # --- listening

    async def serve(self, accept: Accept) -> None:
        """Answer offers, and pass every proven link to `accept`, which keeps it as long as it lives."""
        async with Owner() as owner:
            self._owner = owner
            while True:
                peer, payload = await self._signals.receive()
                try:
                    with Contained(f"peer {peer.short}", f"{self.kind} offer"):
                        self._hear(peer, payload, accept, owner)
                except (RemoteProtocolError, Fault) as error:
                    _log.debug("offer_unreadable", peer=str(peer), why=error.what)

    def _hear(self, peer: PeerId, payload: bytes, accept: Accept, owner: Owner) -> None:
        signal = decode_offer(payload)
        if isinstance(signal, Offer):
            self._take_offer(peer, signal, accept, owner)
        elif signal is not None:
            self._take(peer, signal)

    def _take(self, peer: PeerId, signal: OfferSignal) -> None:
        """Handle a signal of a known attempt; late ones are dropped."""
        key = (peer, signal.attempt)
        attempt = self._dials.get(key) or self._answering.get(key)
        if attempt is None:
            return
        if isinstance(signal, Answer) and key in self._dials and not attempt.answer.done():
            attempt.answer.set_result(signal.terms)
        elif isinstance(signal, More):
            attempt.session.ice.add(self._places(attempt, signal.candidates))
        elif isinstance(signal, OfferGone):
            if attempt.task is not None:  # we answer; `answer` is for that task to set
                attempt.task.cancel()
            elif not attempt.answer.done():
                attempt.answer.set_exception(Broken(f"the other side gave up: {signal.why}"))

    def _say_gone(self, attempt: Attempt) -> None:
        """Tell the other side that we gave up, to save it the rest of its ten seconds."""
        if self._owner is not None and self._owner.is_open:
            try:
                self._owner.start_for(f"peer {attempt.peer.short}", self._send_gone(attempt), name="ice-gone")
            except Closed:
                return  # shutting down

    async def _send_gone(self, attempt: Attempt) -> None:
        try:
            gone = OfferGone(attempt=attempt.id, why="the dial has ended")
            await self._signals.send(attempt.peer, gone.encode())
        except Broken:
            return

    def _take_offer(self, peer: PeerId, offer: Offer, accept: Accept, owner: Owner) -> None:
        key = (peer, offer.attempt)
        if key in self._seen or self._handshake().credentials.chain is None:
            return
        if not self._begins.spend(peer, asyncio.get_running_loop().time()):
            return
        self._seen[key] = None
        if len(self._seen) > ICE_KNOWN.most:
            self._seen.popitem(last=False)
        of_peer = [attempt for attempt in self._answering.values() if attempt.peer == peer]
        if len(of_peer) >= MAX_ANSWERING_ONE and (oldest := of_peer[0].task) is not None:
            oldest.cancel()
        elif len(self._answering) >= MAX_ANSWERING:
            return
        owner.start_for(f"peer {peer.short}", self._welcome(peer, offer, accept), name=f"ice-{peer}")

    async def _welcome(self, peer: PeerId, offer: Offer, accept: Accept) -> None:
        """Run the whole life of one incoming link."""
        attempt: Attempt | None = None
        pipe: IcePipe | None = None
        key = (peer, offer.attempt)
        try:
            async with asyncio.timeout(min(offer.seconds, _ATTEMPT_SECONDS)):
                attempt = await self._prepare(peer, offer.attempt, dialler=False)
                attempt.task = asyncio.current_task()
                self._answering[key] = attempt
                answer = Answer(attempt=offer.attempt, terms=attempt.terms)
                await self._signals.send(peer, answer.encode())
                attempt.answer.set_result(offer.terms)
                pipe = await self._meet(attempt)
                live = await self._greet(attempt, pipe, accept)
            pipe.widen()
            self._answering.pop(key, None)
            await live()
        except (MeshdError, OSError) as error:  # a TimeoutError too
            _log.debug("link_ended", peer=str(peer), why=str(error) or "timed out")
        finally:
            self._answering.pop(key, None)
            if pipe is not None:
                await pipe.aclose()
            elif attempt is not None:
                attempt.session.shut()

    async def _greet(self, attempt: Attempt, pipe: IcePipe, accept: Accept) -> Callable[[], Awaitable[None]]:
        """Prove the dialler; return what keeps the link as long as it lives."""
        proven = await prove_accepted(pipe, handshake=self._handshake(), binding=attempt.session.binding)
        return partial(accept, self._link(attempt, pipe, proven, dialled=False))

    def _link(self, attempt: Attempt, pipe: IcePipe, proven: Proven, *, dialled: bool) -> ProvenLink:
        if proven.peer != attempt.peer:
            raise RemoteProtocolError("a different node answered", code="target")
        pair = attempt.session.pair
        if pair is None:
            raise Broken("the path to the other side is lost")
        local, remote, remote_kind = pair
        return proven_link(
            pipe,
            proven,
            kind=self.kind,
            local=str(Endpoint(*local)),
            remote=str(Endpoint(*remote)),
            path=path_of(local[0], remote[0], remote_kind),
            dialled=dialled,
        )


def _word(length: int) -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(length))
