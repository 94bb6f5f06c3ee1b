"""An SCTP association over DTLS: aiortc begins and ends it, DATA and SACK are ours.

Imports aiortc: import this module on demand. aiortc 1.16 fills a path badly: it sends at most four chunks
for each SACK, holds its window at 1 MiB, waits 1 to 3 s before it sends again, halves its window at each
loss, walks its whole queues for each SACK, and builds SACKs longer than it can read. So this subclass keeps
its handshake (INIT to COOKIE-ACK, with verification tags), and takes everything else into the two
halves of sctp.py. On the wire it is plain SCTP.

All calls into it are made by the loop's thread; nothing here waits. Its one timer is the earliest of what
it has to do without being called: probe, late acknowledgement.
"""

import asyncio
import secrets
import struct
from collections.abc import Callable, Coroutine, Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.link.webrtc import sctp as wire
from meshd.link.webrtc.aiortc_parts import Chunk, RTCDtlsTransport, RTCSctpCapabilities, RTCSctpTransport
from meshd.link.webrtc.sctp import FIRST_WINDOW_BYTES, MAX_INBOX_BYTES, Inbox, Outbox

INIT_SECONDS = 0.4  # before an unanswered INIT goes out again; eight times (aiortc: 3 s)
PROBE_SIZES = (1188, 1332, 1404)  # on IPv6 with UDP and DTLS 1273, 1417, 1489 bytes: its least, VPNs, PPPoE
PROBE_SECONDS = (1.0, 5.0)  # before each repetition
ACK_SECONDS = 0.02  # that an acknowledgement may wait for data to travel with
LOW_BYTES = 16 << 10  # of backlog: `on_drained` is called when it falls to this
_BEGINNING = {wire.INIT: 16, wire.INIT_ACK: 16, wire.ERROR: 0, wire.COOKIE_ECHO: None, wire.COOKIE_ACK: None}


class Association(RTCSctpTransport):
    """One association.

    `send` takes packets, `push` has those that were taken sent; `probe` sends one that arrives whole or not
    at all. `on_bytes` gets what came, in order;
    `on_end(clean)` is called at the end, perhaps more than once.
    """

    def __init__(
        self,
        dtls: RTCDtlsTransport,
        send: Callable[[bytes], None],
        push: Callable[[], None],
        probe: Callable[[bytes], None],
    ) -> None:
        super().__init__(dtls, wire.SCTP_PORT)
        self._advertised_rwnd = FIRST_WINDOW_BYTES
        self._rto = INIT_SECONDS
        self._clock = asyncio.get_running_loop()
        self._write = send
        self._push = push
        self._probe = probe
        self._probe_token = secrets.token_bytes(8)
        self._probes = list(PROBE_SECONDS)
        self._probe_at: float | None = None
        self._inbox: Inbox | None = None
        self._outbox: Outbox | None = None
        self._ready: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._ack_at: float | None = None
        self._over = False
        self.opened = asyncio.Event()  # or ended
        self.on_bytes: Callable[[bytes], None] = lambda data: None
        self.on_end: Callable[[bool], None] = lambda clean: None
        self.on_drained: Callable[[], None] = lambda: None
        self.unread: Callable[[], int] = lambda: 0

    # --- what the pipe calls

    async def begin(self) -> None:
        """Start the handshake; `opened` is set at its end."""
        await self.start(RTCSctpCapabilities(maxMessageSize=0), wire.SCTP_PORT)

    @property
    def is_open(self) -> bool:
        """True if bytes may be written."""
        return self._outbox is not None and not self._over

    @property
    def backlog_bytes(self) -> int:
        """The bytes written and not sent yet."""
        return 0 if self._outbox is None else self._outbox.backlog_bytes

    @property
    def is_done(self) -> bool:
        """True if nothing is left that the other side has not acknowledged."""
        return self._outbox is None or self._outbox.is_done

    def write(self, data: Sequence[bytes | memoryview]) -> None:
        """Queue the pieces and send what the windows allow."""
        if self._outbox is not None:
            for piece in data:
                self._outbox.write(piece)
            self._flush()

    def say_farewell(self) -> None:
        """Queue the message that ends the link, behind all bytes."""
        if self._outbox is not None:
            self._outbox.write(b"end", protocol=wire.FAREWELL)
            self._flush()

    def widen(self) -> None:
        """Widen the window, and tell the other side."""
        self._advertised_rwnd = MAX_INBOX_BYTES
        if self._inbox is not None and not self._over:
            self._inbox.widen(MAX_INBOX_BYTES)
            self._acknowledge()

    def was_read(self) -> None:
        """Acknowledge if worthwhile, after `unread` has fallen."""
        if self._inbox is not None and not self._over and self._inbox.wants_update(unread=self.unread()):
            self._acknowledge()

    def drop(self) -> None:
        """End it at once; the other side is told, if it can be reached."""
        if not self._over:
            self._over = True
            if self._remote_verification_tag:
                self._write(wire.seal(self._remote_verification_tag, struct.pack("!BBH", wire.ABORT, 0, 4)))
                self._push()
            self._set_state(self.State.CLOSED)

    # --- what came

    def take(self, packet: bytes) -> None:
        """Handle one packet. A malformed one is dropped, as the network could have dropped it."""
        try:
            tag, chunks = wire.open_packet(packet)
            if not chunks or self._over:
                return
            # Chunks of the handshake are aiortc's.
            kind, _, body = chunks[0]
            if kind in _BEGINNING:
                # aiortc's own reading never ends when a parameter has no length
                parameters = _BEGINNING[kind]
                if len(chunks) == 1 and (parameters is None or wire.are_parameters(body[parameters:])):
                    _run(self._handle_data(packet))  # checks the tag
                return
            if tag != self._local_verification_tag:
                return
            # All others are ours.
            alive = bytearray()  # goes in one packet: no more of them than came
            for kind, _, body in chunks:
                if kind == wire.DATA:
                    self._take_data(body)
                elif kind == wire.SACK and self._outbox is not None:
                    self._outbox.on_sack(wire.open_sack(body), self._clock.time())
                elif kind == wire.HEARTBEAT:
                    alive += wire.heartbeat_ack(body)
                elif kind == wire.HEARTBEAT_ACK and self._outbox is not None:
                    size = wire.probed(body, self._probe_token)
                    self._outbox.grow(min(size, PROBE_SIZES[-1]))
                    if size >= PROBE_SIZES[-1]:
                        self._probes.clear()
                elif kind == wire.ABORT:
                    self._set_state(self.State.CLOSED)
            if alive and not self._over:
                self._write(wire.seal(self._remote_verification_tag, bytes(alive)))
                self._push()
        except (RemoteProtocolError, struct.error, AssertionError, ValueError):
            return

    def _take_data(self, body: bytes) -> None:
        if self._inbox is None:
            if self._last_received_tsn is None:
                return  # before the handshake; it comes again
            first = (self._last_received_tsn + 1) % wire.TSNS
            self._inbox = Inbox(first, window_bytes=self._advertised_rwnd)
        tsn, protocol, payload = wire.open_data(body)
        for kind, data in self._inbox.take(tsn, protocol, payload, unread=self.unread()):
            if kind == wire.BINARY:
                self._ready.append(data)
            elif kind == wire.FAREWELL:
                self._deliver()
                self._acknowledge()
                self.on_end(True)

    def batch_ended(self) -> None:
        """Deliver, answer and acknowledge, after all packets of a batch were taken."""
        self._deliver()
        self._flush()
        inbox = self._inbox
        if inbox is None or self._over or not (inbox.due or inbox.urgent):
            return
        if inbox.urgent or inbox.due >= 2:
            self._acknowledge()
        elif self._ack_at is None:
            self._ack_at = self._clock.time() + ACK_SECONDS
            self._arm(self._ack_at)

    def _deliver(self) -> None:
        if self._ready:
            data = b"".join(self._ready) if len(self._ready) > 1 else self._ready[0]
            self._ready.clear()
            self.on_bytes(data)

    # --- what goes

    def _flush(self) -> None:
        """Send what the windows allow; an acknowledgement that waits travels with the first chunk."""
        outbox = self._outbox
        if outbox is None or self._over:
            return
        now, before = self._clock.time(), outbox.backlog_bytes
        while (chunk := outbox.next_chunk(now)) is not None:
            number = chunk.number & 0xFFFF
            data = wire.data_chunk(outbox.tsn_of(chunk), number, chunk.protocol, chunk.payload)
            if self._ack_at is not None and len(data) < outbox.payload_bytes - 64:
                data = self._sack() + data
            self._write(wire.seal(self._remote_verification_tag, data))
        self._push()
        for at in (outbox.next_send(now), outbox.deadline()):
            if at is not None:
                self._arm(at)
        if before > LOW_BYTES >= outbox.backlog_bytes or outbox.is_done:
            self.on_drained()

    def _sack(self) -> bytes:
        assert self._inbox is not None
        self._ack_at = None
        return self._inbox.sack(unread=self.unread())

    def _acknowledge(self) -> None:
        self._write(wire.seal(self._remote_verification_tag, self._sack()))
        self._push()

    # --- time

    def _arm(self, at: float) -> None:
        """Have `_on_timer` called at `at` or before; a timer that is early enough stays as it is."""
        if self._timer is not None:
            if self._timer.when() <= at:
                return
            self._timer.cancel()
        self._timer = self._clock.call_at(at, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._over or self._outbox is None:
            return
        now = self._clock.time()
        if not self._outbox.on_timer(now):
            self._end()
            return
        self._flush()
        if self._probe_at is not None:
            if now >= self._probe_at:
                self._probe_path(now)
            else:
                self._arm(self._probe_at)
        if self._ack_at is not None:
            if now >= self._ack_at:
                self._acknowledge()
            else:
                self._arm(self._ack_at)

    def _probe_path(self, now: float) -> None:
        """Test whether larger packets pass; without a reply, which may be lost, try again a few times."""
        for size in PROBE_SIZES:
            chunk = wire.probe_chunk(size, self._probe_token)
            self._probe(wire.seal(self._remote_verification_tag, chunk))
        self._probe_at = now + self._probes.pop(0) if self._probes else None
        if self._probe_at is not None:
            self._arm(self._probe_at)

    # --- what aiortc calls

    async def _send_chunk(self, chunk: Chunk) -> None:
        self._write(wire.seal(self._remote_verification_tag, bytes(chunk)))
        self._push()

    def _set_state(self, state: RTCSctpTransport.State) -> None:
        super()._set_state(state)
        if state == self.State.ESTABLISHED and self._outbox is None:
            self._outbox = Outbox(self._local_tsn, peer_window=self._ssthresh)
            self._probe_path(self._clock.time())
            self.opened.set()
        elif state == self.State.CLOSED:
            self._end()

    def _end(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.opened.set()
        self.on_end(False)


def _run(work: Coroutine[object, object, None]) -> None:
    """Run a coroutine of aiortc that never waits: over our `_send_chunk` none of the handshake does."""
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise AssertionError("aiortc waits where it did not")
