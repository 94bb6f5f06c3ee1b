"""A throw-away link over a data channel: shows that such a kind needs no change above the interface.

Messages carry a type byte: data, credit (the channel has no back-pressure of its own, so the receiver says
how much it has used), or goodbye. The proof is the one of all kinds, bound to the listener's fingerprint.
"""

import asyncio
import hashlib
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from meshd.base.errors import Broken, Busy, Closed, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.proof import Purpose
from meshd.link.interface import Link, LinkKind, Signals, Transport
from meshd.link.secure.handshake import (
    HandshakeContext,
    ProvenLink,
    dial_error,
    prove_accepted,
    prove_dialled,
)
from meshd.wire.address import Candidate

from tests.conformance.data_channel import MAX_MESSAGE_BYTES, DataChannel, Fabric
from tests.conformance.memory_link import info_of

HIGH_BYTES = 64 << 10  # of the channel's buffer
WINDOW_BYTES = 256 << 10  # sent and not yet used by the other side's reader
CREDIT_BYTES = 64 << 10  # used since the last credit: time for another
ID_BYTES = 16
_DATA, _CREDIT, _GOODBYE = b"d", b"c", b"g"
_OFFER, _ANSWER = b"o", b"a"


class ChannelPipe:
    """A RawPipe over a data channel."""

    def __init__(self, channel: DataChannel) -> None:
        self._channel = channel
        self._chunks: deque[bytes] = deque()
        self._unread = self._used = self._unconfirmed = 0
        self._end: type[MeshdError] | None = None
        self._receiving = self._sending = False
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        channel.low_threshold = HIGH_BYTES // 4
        channel.on_low = self._writable.set
        channel.on_message = self._on_message
        channel.on_close = lambda: self._finish(Broken)

    def _on_message(self, message: bytes) -> None:
        kind, body = message[:1], message[1:]
        if kind == _DATA and body and self._end is None:
            self._chunks.append(body)
            self._unread += len(body)
            self._readable.set()
            if self._unread > 2 * WINDOW_BYTES:
                self._finish(Broken)
                self._channel.close()
        elif kind == _CREDIT:
            self._unconfirmed -= int.from_bytes(body, "big")
            self._writable.set()
        elif kind == _GOODBYE:
            self._finish(EndOfStream)
            self._channel.close()

    def _finish(self, kind: type[MeshdError]) -> None:
        self._end = self._end or kind
        self._readable.set()
        self._writable.set()

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        if self._sending:
            raise Busy("two tasks send on one link")
        self._sending = True
        try:
            await self._drained()
            self._put(data)
            await self._drained()
        finally:
            self._sending = False

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        if self._sending or not self._has_room():
            return False
        self._put(data)
        return True

    def _put(self, data: Sequence[bytes | memoryview]) -> None:
        whole = b"".join(data)
        for at in range(0, len(whole), MAX_MESSAGE_BYTES - 1):
            self._channel.send(_DATA + whole[at : at + MAX_MESSAGE_BYTES - 1])
        self._unconfirmed += len(whole)

    def _has_room(self) -> bool:
        if self._end is Closed:
            raise Closed("this link was closed")
        if self._end is not None:
            raise Broken("the other side has disconnected")
        return self._channel.buffered_amount < HIGH_BYTES and self._unconfirmed < WINDOW_BYTES

    async def _drained(self) -> None:
        while not self._has_room():
            self._writable.clear()
            await self._writable.wait()

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """This kind never asks: every chunk goes through `receive`."""

    async def receive(self) -> bytes:
        if self._receiving:
            raise Busy("two tasks receive on one link")
        self._receiving = True
        try:
            while not self._chunks:
                if self._end is not None:
                    raise self._end("the link has ended")
                self._readable.clear()
                await self._readable.wait()
        finally:
            self._receiving = False
        chunk = self._chunks.popleft()
        self._unread -= len(chunk)
        self._used += len(chunk)
        if self._used >= CREDIT_BYTES and self._channel.is_open:
            self._channel.send(_CREDIT + self._used.to_bytes(8, "big"))
            self._used = 0
        return chunk

    async def aclose(self) -> None:
        if self._end is None:
            self._chunks.clear()
            self._finish(Closed)
            try:
                self._channel.send(_GOODBYE)
                self._channel.low_threshold = 0
                async with asyncio.timeout(0.8):
                    while self._channel.buffered_amount:
                        self._writable.clear()
                        await self._writable.wait()
            except (TimeoutError, ConnectionError):
                pass  # the network is dead
            finally:
                self._channel.close()
        self._end = Closed if not self._chunks else self._end


class ChannelEndpoint:
    """What a node's dialer and listener share: it sorts signals into offers and answers."""

    kind = LinkKind.WEBRTC

    def __init__(self, signals: Signals, fabric: Fabric, handshake: Callable[[], HandshakeContext]) -> None:
        self.signals = signals
        self.fabric = fabric
        self.handshake = handshake
        self.fingerprint = secrets.token_bytes(32)
        self.offers: asyncio.Queue[tuple[PeerId, bytes]] = asyncio.Queue(64)
        self.answers: dict[bytes, asyncio.Future[bytes]] = {}

    async def serve(self) -> None:
        """Sort signals until cancelled."""
        while True:
            peer, payload = await self.signals.receive()
            kind, attempt, fingerprint = payload[:1], payload[1 : 1 + ID_BYTES], payload[1 + ID_BYTES :]
            if kind == _OFFER:
                await self.offers.put((peer, attempt))
            elif (waiting := self.answers.get(attempt)) is not None and not waiting.done():
                waiting.set_result(fingerprint)


class ChannelDialer:
    """A Dialer: offers through the signals, and meets the answerer in the fabric."""

    transport = Transport.WEBRTC
    kind = LinkKind.WEBRTC

    def __init__(self, endpoint: ChannelEndpoint) -> None:
        self._endpoint = endpoint

    async def dial(self, peer: PeerId, candidates: Sequence[Candidate]) -> Link:
        pipe: ChannelPipe | None = None
        try:
            async with asyncio.timeout(10):
                channel, fingerprint = await self._meet(peer)
                pipe = ChannelPipe(channel)
                proven = await prove_dialled(
                    pipe,
                    handshake=self._endpoint.handshake(),
                    expect=peer,
                    purpose=Purpose.MEMBER,
                    binding=hashlib.sha256(fingerprint).digest(),
                )
        except (MeshdError, OSError) as error:
            if pipe is not None:
                await pipe.aclose()
            raise dial_error(error, kind=self.kind, place="data channel") from error
        except asyncio.CancelledError:
            if pipe is not None:
                await pipe.aclose()
            raise
        return ProvenLink(pipe, proven.leftover, info_of(proven, kind=self.kind, dialled=True))

    async def _meet(self, peer: PeerId) -> tuple[DataChannel, bytes]:
        endpoint = self._endpoint
        attempt = secrets.token_bytes(ID_BYTES)
        answer = endpoint.answers[attempt] = asyncio.get_running_loop().create_future()
        try:
            async with Owner() as owner:
                meeting = owner.start(endpoint.fabric.meet_as_offerer(attempt), name="meet")
                await endpoint.signals.send(peer, _OFFER + attempt)
                fingerprint = await answer
            return meeting.result(), fingerprint
        finally:
            del endpoint.answers[attempt]


class ChannelListener:
    """A Listener: answers offers."""

    kind = LinkKind.WEBRTC

    def __init__(self, endpoint: ChannelEndpoint) -> None:
        self._endpoint = endpoint

    def candidates(self) -> Sequence[Candidate]:
        return ()

    async def serve(self, accept: Callable[[Link], Awaitable[None]]) -> None:
        async with Owner() as owner:
            while True:
                peer, attempt = await self._endpoint.offers.get()
                owner.start(self._welcome(peer, attempt, accept), name="channel-welcome")

    async def _welcome(self, peer: PeerId, attempt: bytes, accept: Callable[[Link], Awaitable[None]]) -> None:
        endpoint = self._endpoint
        try:
            pipe = ChannelPipe(endpoint.fabric.meet_as_answerer(attempt))
        except ConnectionError:
            return
        try:
            await endpoint.signals.send(peer, _ANSWER + attempt + endpoint.fingerprint)
            binding = hashlib.sha256(endpoint.fingerprint).digest()
            proven = await prove_accepted(pipe, handshake=endpoint.handshake(), binding=binding)
            await accept(ProvenLink(pipe, proven.leftover, info_of(proven, kind=self.kind, dialled=False)))
        except (MeshdError, TimeoutError):
            return  # ends this link only
        finally:
            await pipe.aclose()
