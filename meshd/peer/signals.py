"""Send signals to peers by any route: a session with the peer, a member that has one, a relay's mailbox.

Every signal is signed by its sender and checked only by its receiver (identity/signal.py); a node that passes
a signal on reads only its sender and its receiver. A live session is enough; without one all other routes are
tried at once, and the receiver drops duplicates. One stream of service `signal` carries one signal: nothing
is kept between two of them, and a session that comes and goes needs no care.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from meshd.base import log
from meshd.base.admission import FairQueue, Rates, Release, Slots
from meshd.base.backoff import Asked
from meshd.base.errors import (
    Broken,
    Closed,
    EndOfStream,
    LocalProtocolError,
    MeshdError,
    Refused,
    RemoteProtocolError,
)
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.peer_limits import (
    COOKIES_TOLD,
    SIGNAL_MAIL_RATE,
    SIGNAL_RATE,
    SIGNAL_ROUTE_OF_ISSUER,
    SIGNAL_ROUTE_RATE,
    SIGNALLERS_KNOWN,
    SIGNALS,
    SIGNALS_FORWARDED,
    SIGNALS_OF_ISSUER,
    SIGNALS_OF_PEER,
    SIGNALS_SENT,
    SIGNALS_WAITING,
)
from meshd.base.tasks import Owner
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Admitter, Chain, Member
from meshd.identity.signal import Signal, SignalGuard, SignalVerdict
from meshd.link.interface import Signals
from meshd.peer.interface import Allow, Handler, MetadataValue, Stream
from meshd.peer.node import Node
from meshd.wire.signal import MAX_PAYLOAD_BYTES, MAX_SIGNAL_BYTES, SIGNAL_SERVICE, SignalBody

MAX_UNDER_WAY = SIGNALS_SENT.most
FORWARDERS = 3  # members asked at once to pass a signal on
ROUTE_SECONDS = 3.0  # that a route may take before it counts as failed
SIGNAL_TO = "to"  # metadata of a stream whose signal is to be passed on: the receiver's node id
LOG = log.get("peer")
T = TypeVar("T")
Work = Callable[[], Coroutine[object, object, None]]
STREAM_SECONDS = 10.0  # for a signal of 6 KiB to arrive
LIFE = 30  # seconds that a signal is valid: an offer is answered within this time, or made again
REPEATS = 4  # the last signals to a peer, sent again when the peer sends its cookie


class MailRoute(Protocol):
    """A relay's mailbox, for peers with which nothing else is shared. Blobs have at most 6 KiB."""

    async def send_mail(self, to: PeerId, blob: bytes) -> None:
        """Hand the blob to the relay. Raises MeshdError if that is impossible now."""
        ...

    async def receive_mail(self) -> tuple[PeerId, bytes]:
        """Wait for the next blob; return it with the sender that the relay names.

        Survives losses of the relay.
        """
        ...


class Carriers(Protocol):
    """The part of the mesh that signals use (peer/mesh.py)."""

    def reachable(self) -> Sequence[PeerId]:
        """Return the peers that have a link now."""
        ...

    def hears(self, peer: PeerId) -> bool:
        """Say whether something was heard a moment ago over a link to the peer."""
        ...

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream: ...
    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None: ...


class SignalRoutes:
    """Deliver blobs by any available route. `serve` must run for any route but a live session."""

    def __init__(self, mail: MailRoute | None, rng: Callable[[], float]) -> None:
        self._mail = mail
        self._carriers: Carriers | None = None
        self._asked: Asked[PeerId, PeerId] = Asked(rng)  # members asked to forward, by the signal's receiver
        self._owner: Owner | None = None
        self._under_way = 0

    def attach(self, carriers: Carriers) -> None:
        """Use sessions as carriers from here on."""
        self._carriers = carriers

    async def serve(self, works: Sequence[Work]) -> None:
        """Run deliveries, and `works`, until cancelled."""
        try:
            async with Owner() as owner:
                self._owner = owner
                for work in works:
                    owner.start(work(), name="signals")
                await asyncio.Event().wait()  # until cancelled
        finally:
            self._owner = None

    def came_through(self, peer: PeerId, member: PeerId) -> None:
        """Note that `member` forwarded a valid signal of `peer`, so it has a session with it."""
        self._asked.helped(member, peer)

    def reaches(self, peer: object) -> bool:
        """Say whether there is a link to the node with this id (raw bytes)."""
        return self._carriers is not None and any(
            carrier.raw == peer for carrier in self._carriers.reachable()
        )

    def start(self, work: Work, peer: PeerId) -> None:
        """Run `work` in the background, unless too much is running."""
        if self._owner is not None and self._under_way < MAX_UNDER_WAY:
            with contextlib.suppress(Closed):
                self._owner.start_for(
                    f"peer {peer.short}", self._counted(work), name=f"signal to {peer.short}"
                )
                self._under_way += 1

    async def _counted(self, work: Work) -> None:
        try:
            await work()
        except Broken as error:
            LOG.debug("signal_way_failed", why=error.what)
        finally:
            self._under_way -= 1

    async def hand(self, peer: PeerId, blob: bytes) -> None:
        """Deliver a blob and return when one route has accepted it. Raises Broken when none has."""
        carriers = self._carriers
        if carriers is not None and carriers.hears(peer):
            try:
                await self.by_session(peer, blob)
                return
            except MeshdError as error:
                LOG.debug("signal_way_failed", peer=peer.short, why=error.what)
        # Without a live session, race all other routes.
        routes = self._routes(peer, blob)
        owner = self._owner
        if not routes or owner is None or self._under_way + len(routes) > MAX_UNDER_WAY:
            raise Broken(f"cannot send a signal to {peer.short}")
        name = f"signal to {peer.short}"
        pending = set()
        try:
            for route in routes:
                pending.add(owner.start_for(f"peer {peer.short}", self._try(route), name=name))
                self._under_way += 1
        except Closed as error:
            raise Broken(f"cannot send a signal to {peer.short}: {error.what}") from error
        while pending:  # the others continue: the receiver drops duplicates
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(not task.cancelled() and task.result() for task in done):
                return
        raise Broken(f"cannot send a signal to {peer.short}")

    def _routes(self, peer: PeerId, blob: bytes) -> list[Work]:
        """Return all routes, to be tried at once: the receiver drops duplicates."""
        routes: list[Work] = []
        reachable = list(self._carriers.reachable()) if self._carriers is not None else []
        if peer in reachable:  # silent for a moment; perhaps not dead
            routes.append(partial(self.by_session, peer, blob))
            reachable.remove(peer)
        for forwarder in self._asked.order(reachable, peer, asyncio.get_running_loop().time())[:FORWARDERS]:
            routes.append(partial(self._by_member, forwarder, peer, blob))
        if self._mail is not None:
            routes.append(partial(self._mail.send_mail, peer, blob))
        return routes

    async def _try(self, route: Work) -> bool:
        """Return True if the route has accepted its signal."""
        try:
            async with asyncio.timeout(ROUTE_SECONDS):
                await route()
            return True
        except (MeshdError, TimeoutError) as error:
            LOG.debug("signal_way_failed", why=str(error))
            return False
        finally:
            self._under_way -= 1

    async def by_session(self, peer: PeerId, blob: bytes) -> None:
        """Send the blob over the session with the peer. Raises Broken without one."""
        await self._write(self._open(peer, {}), blob)

    async def _by_member(self, forwarder: PeerId, peer: PeerId, blob: bytes) -> None:
        try:
            stream = self._open(forwarder, {SIGNAL_TO: peer.raw})
            await self._write(stream, blob)
            # The forwarder's claim only: a signal of the peer shows that it has arrived.
            await stream.accepted()
        except (MeshdError, asyncio.CancelledError):
            self._asked.failed(forwarder, peer, asyncio.get_running_loop().time())
            raise

    def _open(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> Stream:
        if self._carriers is None:
            raise Broken("signals are not attached to the mesh yet")
        return self._carriers.open_stream(peer, SIGNAL_SERVICE, metadata=metadata)

    async def _write(self, stream: Stream, blob: bytes) -> None:
        written = False
        try:
            await stream.write(blob)
            stream.write_eof()
            written = True
        finally:
            if not written:
                stream.reset(1, "signal given up")


def bounded(kept: dict[PeerId, T], peer: PeerId, value: T) -> None:
    """Put the value at the end; beyond the limit of peers, drop the one silent longest."""
    kept.pop(peer, None)
    kept[peer] = value
    if len(kept) > SIGNALLERS_KNOWN.most:
        del kept[next(iter(kept))]


class SignalService:
    """The signals of a node. `topic` gives each kind of link its `Signals`; run `attach` and `serve`.

    `issuer_of` returns the share in which a peer counts; None for all unknown peers.
    """

    def __init__(
        self,
        *,
        node: Node,
        key: KeyPair,
        chain: Callable[[], Chain],
        mail: MailRoute | None,
        issuer_of: Callable[[PeerId], Hashable],
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._node = node
        self._key = key
        self._chain = chain
        self._mail = mail
        self._issuer_of = issuer_of
        self._routes = SignalRoutes(mail, rng)
        self._guard = SignalGuard(node.random(16))
        self._coming = Slots(SIGNALS, SIGNALS_OF_PEER, SIGNALS_OF_ISSUER)
        self._sequence = 0
        self._boxes: dict[str, _SignalBox] = {}
        self._echoes: dict[PeerId, bytes] = {}  # the last cookie of each peer
        self._sent: dict[PeerId, deque[_SentSignal]] = {}
        self._senders = Rates(SIGNAL_RATE)
        self._bringers = Rates(SIGNAL_ROUTE_RATE)  # the carriers: checking costs
        self._issuers_in = Rates(SIGNAL_ROUTE_OF_ISSUER)
        self._by_mail = SIGNAL_MAIL_RATE.bucket(0.0)
        self._forwarded = Rates(SIGNALS_FORWARDED)
        self._cookies = Rates(COOKIES_TOLD)

    def topic(self, name: str) -> Signals:
        """Return the signals of one kind of link: one object for dialler and listener, read by one task."""
        return self._boxes.setdefault(name, _SignalBox(name, self._send))

    def attach(self, carriers: Carriers) -> None:
        """Use sessions as carriers from here on; signals of other members may be passed on."""
        self._routes.attach(carriers)
        carriers.handle(SIGNAL_SERVICE, self._take_stream, allow=self._allow, quiet=True)

    async def serve(self) -> None:
        """Receive mail, and run deliveries, until cancelled."""
        mail = self._mail
        await self._routes.serve(() if mail is None else (partial(self._take_mail, mail),))

    # Sending.

    async def _send(self, topic: str, peer: PeerId, payload: bytes) -> None:
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise LocalProtocolError(
                f"signal of {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed"
            )
        sent = self._sent.pop(peer, None) or deque(maxlen=REPEATS)
        sent.append(_SentSignal(topic, payload, self._node.now()))
        bounded(self._sent, peer, sent)
        await self._routes.hand(peer, self._signed(peer, topic, payload))

    def _signed(self, peer: PeerId, topic: str, payload: bytes, *, echo: bytes | None = None) -> bytes:
        self._sequence += 1
        body = SignalBody(
            sender=self._key.peer.raw,
            to=peer.raw,
            topic=topic,
            start=self._node.facts.incarnation,
            sequence=self._sequence,
            at=self._node.wall_clock(),
            life=LIFE,
            cookie=self._guard.cookie(peer, self._node.now()),
            echo=self._echoes.get(peer, b"") if echo is None else echo,
            payload=payload,
            chain=self._chain().encode(),
        )
        return Signal.sign(self._key, body).encode()

    # Receiving.

    def _allow(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | Release:
        to = metadata.get(SIGNAL_TO)
        if to is not None and not self._routes.reaches(to):
            return "not connected to that node"
        return self._coming.take(member.peer, member.chain.admitter) or "too many signals at once"

    async def _take_stream(self, stream: Stream) -> None:
        blob = bytearray()
        try:
            async with asyncio.timeout(STREAM_SECONDS):
                while len(blob) <= MAX_SIGNAL_BYTES:
                    piece = await stream.read()
                    blob += piece
                    stream.consumed(len(piece))
        except EndOfStream:
            stream.write_eof()
        except TimeoutError:
            raise Broken("a signal is too long") from None
        signal = Signal.decode(bytes(blob))
        if signal.to == self._key.peer:
            self._take(signal, through=stream.peer, by=stream.peer)
        else:
            await self._pass_on(signal, stream)

    async def _pass_on(self, signal: Signal, stream: Stream) -> None:
        """Pass a signal on by one hop, from the sender itself to a peer of ours. Raises MeshdError."""
        if signal.sender != stream.peer or stream.metadata.get(SIGNAL_TO) != signal.to.raw:
            raise RemoteProtocolError("a signal from another sender is not forwarded", code="signal")
        if not self._forwarded.spend(signal.sender, self._node.now()):
            raise Refused("too many signals to forward", code="busy")
        try:
            async with asyncio.timeout(ROUTE_SECONDS):
                await self._routes.by_session(signal.to, signal.encode())
        except TimeoutError:
            raise Broken("the peer refused it") from None

    async def _take_mail(self, mail: MailRoute) -> None:
        while True:
            # The mail room is fair, but we have to limit the rate.
            await asyncio.sleep(self._by_mail.take(1, self._node.now()))
            sender, blob = await mail.receive_mail()
            try:
                with Contained("relay", "signal"):
                    signal = Signal.decode(blob)
                    if signal.to == self._key.peer:
                        self._take(signal, through=None, by=("mail", sender))
            except (RemoteProtocolError, Fault) as error:
                LOG.info("signal_dropped", why=error.what)

    def _take(self, signal: Signal, *, through: PeerId | None, by: Hashable) -> None:
        """Check a signal to this node and give it to its topic. Raises RemoteProtocolError.

        `by`: the carrier that brought it.
        """
        sender, now = signal.sender, self._node.now()
        if not self._may_come(sender, by, now):
            # `sender` has signed nothing yet: another node must not use up its log lines.
            LOG.info("signal_dropped", node=sender.short, why="too many of them")
            return
        member = signal.verify(self._chain().leaf.mesh)
        why = self._node.why_banned(member)
        if why is None:
            verdict = self._guard.take(signal, now=now, wall=self._node.wall_clock())
            if verdict is SignalVerdict.GOOD:
                self._accept(signal, member, through)
                return
            if verdict is SignalVerdict.REPEATED:
                return  # it already came by another route
            why = verdict.value
            self._tell(sender, signal.body.cookie)
        LOG.info("signal_dropped", peer=sender.short, kind=signal.body.topic, why=why)

    def _may_come(self, sender: PeerId, by: Hashable, now: float) -> bool:
        """Charge an unchecked signal to its carrier's share: the carrier may have made it up."""
        return (
            self._senders.spend((sender, by), now)
            and self._issuers_in.spend((self._issuer_of(sender), by), now)
            and self._bringers.spend(by, now)
        )

    def _accept(self, signal: Signal, member: Member, through: PeerId | None) -> None:
        body, sender = signal.body, signal.sender
        bounded(self._echoes, sender, body.cookie)
        if through is not None and through != sender:
            self._routes.came_through(sender, through)
        if not body.topic:
            self._send_again(sender)
        elif (box := self._boxes.get(body.topic)) is not None:
            box.put(sender, body.payload, member.chain.admitter)

    def _tell(self, peer: PeerId, cookie: bytes) -> None:
        """Send our cookie to a sender that lacks it; it proves that the sender's next signals are new."""
        if self._cookies.spend(peer, self._node.now()):
            blob = self._signed(peer, "", b"", echo=cookie)
            self._routes.start(partial(self._routes.hand, peer, blob), peer)

    def _send_again(self, peer: PeerId) -> None:
        """Send again, once, the signals that the peer most likely refused for lack of its cookie."""
        since = self._node.now() - LIFE
        again = [
            self._signed(peer, signal.topic, signal.payload)
            for signal in self._sent.pop(peer, ())
            if signal.at >= since
        ]
        if again:
            self._routes.start(partial(self._hand_all, peer, again), peer)

    async def _hand_all(self, peer: PeerId, blobs: Sequence[bytes]) -> None:
        for blob in blobs:
            await self._routes.hand(peer, blob)


class _SentSignal(NamedTuple):
    """A signal as its topic gave it, and when."""

    topic: str
    payload: bytes
    at: float


class _SignalBox:
    """The signals of one topic (implements link.interface.Signals)."""

    def __init__(
        self, name: str, send: Callable[[str, PeerId, bytes], Coroutine[object, object, None]]
    ) -> None:
        self._name = name
        self._hand = send
        self._waiting: FairQueue[tuple[PeerId, bytes]] = FairQueue(SIGNALS_WAITING.most)
        self._came = asyncio.Event()

    async def send(self, peer: PeerId, payload: bytes) -> None:
        """Send a signal to the peer."""
        await self._hand(self._name, peer, payload)

    async def receive(self) -> tuple[PeerId, bytes]:
        """Wait for the next signal and return it with its sender."""
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        return self._waiting.pop()

    def put(self, peer: PeerId, payload: bytes, issuer: Admitter) -> None:
        self._waiting.put((peer, payload), issuer, peer)
        self._came.set()
