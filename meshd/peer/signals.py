"""Signals to peers by whatever route there is: a session with the peer, a member with one, a relay's mailbox.

Every signal is signed by its sender and checked by its receiver alone (identity/signal.py); a node that
passes one on reads no more than from whom and to whom.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial

from meshd.base import log
from meshd.base.errors import (
    Broken,
    EndOfStream,
    LocalProtocolError,
    Refused,
    RemoteProtocolError,
)
from meshd.base.fair_queue import FairQueue
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.peer_limits import (
    COOKIES_TOLD,
    SIGNAL_MAIL_RATE,
    SIGNAL_RATE,
    SIGNAL_ROUTE_OF_ISSUER,
    SIGNAL_ROUTE_RATE,
    SIGNALS,
    SIGNALS_FORWARDED,
    SIGNALS_OF_ISSUER,
    SIGNALS_OF_PEER,
    SIGNALS_WAITING,
)
from meshd.base.rate_by_key import Rates
from meshd.base.work_slots import Release, Slots
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Admitter, Chain, Member
from meshd.identity.signal import Signal
from meshd.identity.signal_guard import SignalGuard, SignalVerdict
from meshd.link.interface import Signals
from meshd.peer.interface import MetadataValue, Stream
from meshd.peer.node import Node
from meshd.peer.signal_routes import ROUTE_SECONDS, SIGNAL_TO, Carriers, MailRoute, SignalRoutes, bounded
from meshd.wire.signal import MAX_PAYLOAD_BYTES, MAX_SIGNAL_BYTES, SIGNAL_SERVICE, SignalBody

STREAM_SECONDS = 10.0  # for a signal of 6 KiB to come in
LIFE = 30  # seconds that a signal is good for: an offer is answered within, or made anew
REPEATS = 4  # of the last signals to a peer, sent again when it tells its cookie
LOG = log.get("peer")


class SignalService:
    """One for a node; `topic` gives each kind of link its `Signals`. `attach` and `serve` make it work.

    `issuer_of`: in whose share a peer counts; None for all of whom nothing is known.
    """

    def __init__(
        self,
        *,
        node: Node,
        key: KeyPair,
        chain: Callable[[], Chain],
        mail: MailRoute | None = None,
        issuer_of: Callable[[PeerId], Hashable] = lambda _peer: None,
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
        self._echoes: dict[PeerId, bytes] = {}  # their cookies, as last heard
        self._sent: dict[PeerId, deque[_SentSignal]] = {}
        self._senders = Rates(SIGNAL_RATE)
        self._bringers = Rates(SIGNAL_ROUTE_RATE)  # checking costs
        self._issuers_in = Rates(SIGNAL_ROUTE_OF_ISSUER)
        self._by_mail = SIGNAL_MAIL_RATE.bucket(0.0)
        self._forwarded = Rates(SIGNALS_FORWARDED)
        self._told = Rates(COOKIES_TOLD)

    def topic(self, name: str) -> Signals:
        """The signals of one kind of link: the same object for dialler and listener, received by one task."""
        return self._boxes.setdefault(name, _SignalBox(name, self._send))

    def attach(self, carriers: Carriers) -> None:
        """Sessions carry signals from here on; those of other members may be passed on."""
        self._routes.attach(carriers)
        carriers.handle(SIGNAL_SERVICE, self._take_stream, allow=self._allow, quiet=True)

    async def serve(self) -> None:
        """Take the mail in, and own running deliveries, until cancelled."""
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
        """One hop, from the sender itself to a peer of ours."""
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
            await asyncio.sleep(self._by_mail.take(1, self._node.now()))  # the mail room is fair, we are not
            sender, blob = await mail.receive_mail()
            try:
                with Contained("relay", "signal"):
                    signal = Signal.decode(blob)
                    if signal.to == self._key.peer:
                        self._take(signal, through=None, by=("mail", sender))
            except (RemoteProtocolError, Fault) as error:
                LOG.info("signal_dropped", why=error.what)

    def _take(self, signal: Signal, *, through: PeerId | None, by: Hashable) -> None:
        """Check a signal to this node and give it to its topic; `by`: who brought it.

        Raises RemoteProtocolError.
        """
        sender, now = signal.sender, self._node.now()
        if not self._may_come(sender, by, now):
            # `sender` has signed nothing yet: another node must not use up its log lines
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
                return  # it came by another route
            why = verdict.value
            self._tell(sender, signal.body.cookie)
        LOG.info("signal_dropped", peer=sender.short, kind=signal.body.topic, why=why)

    def _may_come(self, sender: PeerId, by: Hashable, now: float) -> bool:
        """Nothing is checked yet: its carrier may have made it up, at the cost of its own share."""
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
        """Our cookie, to a sender that lacks it: its next signals prove by it that they are new."""
        if self._told.spend(peer, self._node.now()):
            blob = self._signed(peer, "", b"", echo=cookie)
            self._routes.start(partial(self._routes.hand, peer, blob), peer)

    def _send_again(self, peer: PeerId) -> None:
        """What it most likely has refused for want of its cookie; once."""
        since = self._node.now() - LIFE
        again = [
            self._signed(peer, one.topic, one.payload) for one in self._sent.pop(peer, ()) if one.at >= since
        ]
        if again:
            self._routes.start(partial(self._hand_all, peer, again), peer)

    async def _hand_all(self, peer: PeerId, blobs: Sequence[bytes]) -> None:
        for blob in blobs:
            await self._routes.hand(peer, blob)


class _SentSignal:
    """A signal as its topic gave it, and when."""

    __slots__ = ("at", "payload", "topic")

    def __init__(self, topic: str, payload: bytes, at: float) -> None:
        self.topic = topic
        self.payload = payload
        self.at = at


class _SignalBox:
    """Implements link.interface.Signals for one topic."""

    def __init__(
        self, name: str, send: Callable[[str, PeerId, bytes], Coroutine[object, object, None]]
    ) -> None:
        self._name = name
        self._hand = send
        self._waiting: FairQueue[tuple[PeerId, bytes]] = FairQueue(SIGNALS_WAITING.most)
        self._came = asyncio.Event()

    async def send(self, peer: PeerId, payload: bytes) -> None:
        """See Signals."""
        await self._hand(self._name, peer, payload)

    async def receive(self) -> tuple[PeerId, bytes]:
        """See Signals."""
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        return self._waiting.pop()

    def put(self, peer: PeerId, payload: bytes, issuer: Admitter) -> None:
        self._waiting.put((peer, payload), issuer, peer)
        self._came.set()
