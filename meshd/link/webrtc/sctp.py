"""SCTP of the webrtc link (RFC 9260): packets, and both halves of an association. Pure.

Only what runs all the time is here: DATA and SACK. The chunks that begin and end an association are aiortc's
(sctp_association.py). Every DATA chunk is a whole message, so nothing is put together again: the link is a
byte stream and has no use for boundaries.

`Inbox` counts from 0 without wrapping. What has come beyond a hole is kept as ranges, so that a chunk and an
acknowledgement cost the number of holes, not that of chunks (aiortc sorts all of them, each time).

`Outbox` finds losses as QUIC does (RFC 9002 6.1): each transmission has a number, and one is lost when one
that is later by three or more was acknowledged, or one that was sent 9/8 of a round trip later. So a
retransmission that is lost is found as quickly as the first, and an acknowledgement costs what is new in it:
it never walks over what was said before. When nothing comes back, a probe is sent (RFC 9002 6.2), first after
about a round trip, and the window stays what the model of the path says.
"""

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice

from google_crc32c import value as crc32c

from meshd.base.errors import RemoteProtocolError
from meshd.link.bbr import ModelWindow

SCTP_PORT = 5000  # both sides; there is one association in each DTLS connection (RFC 8841)
DATA, INIT, INIT_ACK, SACK, HEARTBEAT, HEARTBEAT_ACK, ABORT = range(7)
ERROR, COOKIE_ECHO, COOKIE_ACK = 9, 10, 11
STREAM = 0
BINARY = 53  # payload protocol of our bytes (RFC 8831 8)
FAREWELL = 51  # "string": the one word that ends a link
WHOLE = 0x03  # begins and ends a message
MAX_GAPS = 250  # a SACK with more would not fit a DTLS record of 1500 bytes, and be thrown away
TSNS = 1 << 32
_HALF = 1 << 31

_COMMON = struct.Struct("!HHL")
_CHUNK = struct.Struct("!BBH")
_DATA = struct.Struct("!BBHLHHL")
_DATA_BODY = struct.Struct("!LHHL")
_SACK = struct.Struct("!BBHLLHH")
_SACK_BODY = struct.Struct("!LLHH")
_PARAMETER = struct.Struct("!HH")
HEARTBEAT_INFO = 1
_ZERO = bytes(4)
_PAD = (b"", b"\0\0\0", b"\0\0", b"\0")

CHUNK_OVERHEAD = 12 + 16  # common header and chunk header
FIRST_WINDOW_BYTES = 64 << 10  # until the other side has proven who it is
MAX_INBOX_BYTES = 4 << 20  # what may wait here: 100 Mbit/s for 100 ms, three times
MAX_HOLES = 4096
_CHUNK_COST = 64  # of a waiting chunk beside its bytes, so that tiny ones are bounded too
_SLACK_BYTES = 4096  # over the window: a sender may ask a closed one
_REACH = 0xFFFF  # a SACK can name chunks up to so far beyond its cumulative number
FIRST_PACKET_BYTES = 1056  # with DTLS, UDP and IPv4 1121: passes tunnels in tunnels; then probes tell
REORDER_PACKETS = 3
MAX_REORDER_PACKETS = 64
FIRST_PROBE_SECONDS = 0.5  # before any round trip was seen (RFC 6298 says 1)
LEAST_PROBE_SECONDS = 0.05  # beyond the round trip: the other side's turn of the loop and its 20 ms
MOST_PROBE_SECONDS = 3.0
FIRST_FLIGHT_CHUNKS = 64  # spread over a round trip as soon as one is known, and that is from the proof
LEAST_FLIGHT_CHUNKS = 32  # in a round trip, however little was sent, and so measured, before
PACE_SECONDS = 0.002  # a sender that was late by so much may catch up: timers come in milliseconds
_BURST_SECONDS = 0.001  # of the pace that go out together
GIVE_UP_SECONDS = 30.0  # nothing acknowledged for so long while something was on its way
MAX_FLIGHT_CHUNKS = 16_000  # a SACK names 65535; stream numbers of 16 bits are compared by halves


@dataclass(frozen=True, slots=True)
class SackBody:
    """The peer's acknowledgement: all up to `cumulative`, and blocks `(start, end)` counted from there."""

    cumulative: int
    window: int
    gaps: tuple[tuple[int, int], ...]


def seal(tag: int, chunks: bytes) -> bytes:
    """Return a packet with its checksum (CRC32c, RFC 9260 appendix A)."""
    head = _COMMON.pack(SCTP_PORT, SCTP_PORT, tag)
    return b"".join((head, crc32c(b"".join((head, _ZERO, chunks))).to_bytes(4, "little"), chunks))


def data_chunk(tsn: int, sequence: int, protocol: int, payload: bytes) -> bytes:
    """Return one whole message as a DATA chunk."""
    size = len(payload)
    head = _DATA.pack(DATA, WHOLE, size + 16, tsn, STREAM, sequence, protocol)
    return b"".join((head, payload, _PAD[size & 3]))


def sack_chunk(cumulative: int, window: int, gaps: Sequence[tuple[int, int]]) -> bytes:
    """Return an acknowledgement; gaps beyond the first 250 are left out until those have closed."""
    sent = gaps[:MAX_GAPS]
    head = _SACK.pack(SACK, 0, 16 + 4 * len(sent), cumulative, window, len(sent), 0)
    return head + b"".join(_pair(start, end) for start, end in sent)


_pair = struct.Struct("!HH").pack


def open_packet(packet: bytes) -> tuple[int, list[tuple[int, int, bytes]]]:
    """Return the tag and the chunks `(type, flags, body)`. Raises RemoteProtocolError when it is not a
    packet.
    """
    size = len(packet)
    if size < 16:
        raise RemoteProtocolError("an SCTP packet is too short", code="sctp")
    checksum = int.from_bytes(packet[8:12], "little")
    if checksum != crc32c(b"".join((packet[:8], _ZERO, packet[12:]))):
        raise RemoteProtocolError("an SCTP packet has a wrong checksum", code="sctp")
    chunks = []
    at = 12
    while at <= size - 4:
        kind, flags, length = _CHUNK.unpack_from(packet, at)
        if length < 4 or at + length > size:
            raise RemoteProtocolError("an SCTP chunk has a wrong length", code="sctp")
        chunks.append((kind, flags, packet[at + 4 : at + length]))
        at += (length + 3) & ~3
    return _COMMON.unpack_from(packet)[2], chunks


def open_data(body: bytes) -> tuple[int, int, bytes]:
    """Return TSN, payload protocol, payload of a DATA chunk. Raises RemoteProtocolError."""
    if len(body) <= 12:
        raise RemoteProtocolError("a DATA chunk has no data", code="sctp")
    tsn, _, _, protocol = _DATA_BODY.unpack_from(body)
    return tsn, protocol, body[12:]


def open_sack(body: bytes) -> SackBody:
    """Read a SACK, whose gaps must be in order and apart. Raises RemoteProtocolError."""
    if len(body) < 12:
        raise RemoteProtocolError("a SACK is too short", code="sctp")
    cumulative, window, count, repeats = _SACK_BODY.unpack_from(body)
    if len(body) < 12 + 4 * (count + repeats):
        raise RemoteProtocolError("a SACK is truncated", code="sctp")
    numbers = struct.unpack_from(f"!{2 * count}H", body, 12)
    if any(high <= low for low, high in zip(numbers[1:-1:2], numbers[2::2], strict=True)):
        raise RemoteProtocolError("the gaps of a SACK are out of order", code="sctp")
    gaps = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    if any(not 1 < start <= end for start, end in gaps):
        raise RemoteProtocolError("a gap of a SACK is empty", code="sctp")
    return SackBody(cumulative, window, gaps)


def probe_chunk(size: int, token: bytes) -> bytes:
    """Return a HEARTBEAT that makes a packet of `size` bytes, a multiple of 4; its reply tells (RFC 8899)."""
    info = size - 12 - 4  # common header, chunk header
    words = size.to_bytes(2, "big") + token
    parameter = _PARAMETER.pack(HEARTBEAT_INFO, info) + words + bytes(info - 4 - len(words))
    return _CHUNK.pack(HEARTBEAT, 0, len(parameter) + 4) + parameter


def probed(body: bytes, token: bytes) -> int:
    """Return the size that a HEARTBEAT-ACK confirms; 0: it does not answer one of ours."""
    return int.from_bytes(body[4:6], "big") if body[6 : 6 + len(token)] == token else 0


def heartbeat_ack(body: bytes) -> bytes:
    """Return the reply to a HEARTBEAT, with the same content."""
    return _CHUNK.pack(HEARTBEAT_ACK, 0, len(body) + 4) + body + _PAD[len(body) & 3]


def are_parameters(body: bytes) -> bool:
    """Return True if `body` is a list of parameters with consistent lengths (RFC 9260 3.2.1)."""
    at = 0
    while at <= len(body) - 4:
        length = int.from_bytes(body[at + 2 : at + 4], "big")
        if length < 4:
            return False
        at += (length + 3) & ~3
    return True


def ahead(tsn: int, of: int) -> int:
    """Return how far `tsn` is ahead of `of` on the circle of 2³² numbers; negative: behind (RFC 1982)."""
    return (tsn - of + _HALF) % TSNS - _HALF


class Inbox:
    """Received chunks. `first_tsn` is the peer's initial TSN; `window_bytes` bounds what is kept."""

    def __init__(self, first_tsn: int, *, window_bytes: int = MAX_INBOX_BYTES) -> None:
        self._first = first_tsn
        self._window = window_bytes
        self._next = 0  # the first number that is missing
        self._starts: list[int] = []  # of the ranges beyond it
        self._ends: list[int] = []  # their last numbers
        self._held: dict[int, tuple[int, bytes]] = {}
        self._held_bytes = 0
        self._told_window = window_bytes
        self.due = 0  # chunks since the last acknowledgement
        self.urgent = False  # acknowledge at once: a hole, a repetition (RFC 9260 6.2)

    def take(self, tsn: int, protocol: int, payload: bytes, *, unread: int) -> list[tuple[int, bytes]]:
        """Take one chunk; return what can be delivered now, in order.

        `unread`: bytes that were delivered and not read. What does not fit the window is dropped, and comes
        again when there is room.
        """
        self.due += 1
        number = self._next + ahead(tsn, (self._first + self._next) % TSNS)
        if number < self._next or number in self._held or number - self._next >= _REACH:
            self.urgent = True
            return []
        # what comes next in order is taken whatever waits behind it, or nothing would ever move again
        waiting = unread if number == self._next else unread + self._held_bytes
        if waiting + len(payload) > self._window + _SLACK_BYTES:
            self.urgent = True
            return []
        if number != self._next:
            self._keep(number, protocol, payload)
            return []
        self._next += 1
        ready = [(protocol, payload)]
        if self._starts and self._starts[0] == self._next:
            self.urgent = True  # a hole has closed: the sender should know
            for at in range(self._starts.pop(0), self._ends.pop(0) + 1):
                kept = self._held.pop(at)
                self._held_bytes -= len(kept[1]) + _CHUNK_COST
                ready.append(kept)
                self._next = at + 1
        return ready

    def _keep(self, number: int, protocol: int, payload: bytes) -> None:
        self.urgent = True
        starts, ends = self._starts, self._ends
        at = bisect_right(starts, number)
        before = at > 0 and ends[at - 1] == number - 1
        after = at < len(starts) and starts[at] == number + 1
        if before and after:
            ends[at - 1] = ends.pop(at)
            starts.pop(at)
        elif before:
            ends[at - 1] = number
        elif after:
            starts[at] = number
        elif len(starts) >= MAX_HOLES:
            return
        else:
            starts.insert(at, number)
            ends.insert(at, number)
        self._held[number] = (protocol, payload)
        self._held_bytes += len(payload) + _CHUNK_COST

    def widen(self, window_bytes: int) -> None:
        """Widen the window."""
        self._window = max(self._window, window_bytes)

    def wants_update(self, *, unread: int) -> bool:
        """Return True if the window has opened so much since it was reported that the sender should know."""
        opened = self._room(unread) - self._told_window
        return opened >= self._window // 4 and self._told_window < self._window // 2

    def sack(self, *, unread: int) -> bytes:
        """Return the acknowledgement of all that has come, as a chunk."""
        self.due, self.urgent = 0, False
        self._told_window = self._room(unread)
        last = self._next - 1
        gaps = [(s - last, e - last) for s, e in zip(self._starts, self._ends, strict=True)]
        return sack_chunk((self._first + last) % TSNS, self._told_window, gaps)

    def _room(self, unread: int) -> int:
        return max(0, self._window - unread - self._held_bytes)


class Sent:
    """One chunk from its first transmission until it is acknowledged."""

    __slots__ = ("number", "payload", "protocol", "sent_at", "times", "turn", "untold")

    def __init__(self, number: int, protocol: int, payload: bytes) -> None:
        self.number = number
        self.protocol = protocol
        self.payload = payload
        self.turn = -1  # number of its last transmission
        self.sent_at = 0.0
        self.times = 0
        self.untold = False


class Outbox:
    """Chunks to send, and in flight. `first_tsn` is our initial TSN, `peer_window` the other side's."""

    def __init__(self, first_tsn: int, *, peer_window: int, payload_bytes: int = 0) -> None:
        self._first = first_tsn
        self._peer_window = peer_window
        self.payload_bytes = payload_bytes or (FIRST_PACKET_BYTES - CHUNK_OVERHEAD) // 4 * 4
        self.model = ModelWindow(self.payload_bytes)
        self.model.window = FIRST_FLIGHT_CHUNKS * self.payload_bytes
        self._backlog: deque[tuple[int, memoryview]] = deque()
        self.backlog_bytes = 0
        self._next = 0  # number of the next new chunk
        self._base = 0  # the first number that is not acknowledged
        self._chunks: dict[int, Sent] = {}  # not acknowledged
        self._outstanding_bytes = 0  # of these
        self._flight: dict[int, Sent] = {}  # by turn, oldest first
        self.flight_bytes = 0
        self._lost: deque[Sent] = deque()
        self._untold: list[tuple[int, Sent]] = []  # a heap by number: arrived or lost, no SACK has said which
        self._gaps: tuple[tuple[int, int], ...] = ()  # as numbers, of the last SACK
        self._horizon = 0  # chunks up to this one are told of
        self._turn = 0
        self._acked_turn = -1
        self._acked_sent_at = 0.0
        self._reorder = REORDER_PACKETS
        self._srtt: float | None = None
        self._rttvar = 0.0
        self._probes = 0  # in a row
        self._probe_due = False
        self._pace_at = 0.0  # when the next chunk may go out by the model's pace
        self._hold_until = 0.0  # nothing goes out before: some together cost less than one after the other
        self._heard_at = 0.0  # of the last acknowledgement, or of the first chunk after silence

    # --- in

    def write(self, data: bytes | memoryview, *, protocol: int = BINARY) -> None:
        """Queue bytes; they are not changed by the caller afterwards."""
        if len(data):
            self._backlog.append((protocol, memoryview(data)))
            self.backlog_bytes += len(data)

    def grow(self, packet_bytes: int) -> None:
        """Fill new chunks up to packets of this size, checksum and all, which the path takes."""
        size = (packet_bytes - CHUNK_OVERHEAD) // 4 * 4
        if size > self.payload_bytes:
            self.payload_bytes = self.model.segment = size

    @property
    def is_done(self) -> bool:
        """True if all that was written is acknowledged."""
        return not self._backlog and not self._chunks

    def on_sack(self, sack: SackBody, now: float) -> None:
        """Take an acknowledgement; one that is old, or names what was never sent, is ignored."""
        cumulative = self._base + ahead(sack.cumulative, (self._first + self._base) % TSNS)
        if cumulative < self._base - 1 or cumulative >= self._next:
            return
        gaps = tuple((cumulative + start, cumulative + end) for start, end in sack.gaps)
        if gaps and gaps[-1][1] >= self._next:
            return
        self._peer_window, self._heard_at = sack.window, now
        newly = [chunk for number in range(self._base, cumulative + 1) if (chunk := self._chunks.get(number))]
        self._base = cumulative + 1
        if gaps != self._gaps:
            newly += self._fresh(gaps)
            self._gaps = gaps
        # a SACK that is full does not say what came beyond it
        self._horizon = gaps[-1][1] if len(gaps) >= MAX_GAPS else self._next
        if newly:
            self._acknowledge(newly, now)

    def _fresh(self, gaps: tuple[tuple[int, int], ...]) -> list[Sent]:
        """Return chunks in `gaps` newly acknowledged; steps over what the last SACK has said."""
        old, at, fresh = self._gaps, 0, []
        for start, end in gaps:
            number = start
            while number <= end:
                while at < len(old) and old[at][1] < number:
                    at += 1
                if at < len(old) and old[at][0] <= number:
                    number = old[at][1] + 1
                    continue
                stop = min(end, old[at][0] - 1) if at < len(old) else end
                fresh += [chunk for n in range(number, stop + 1) if (chunk := self._chunks.get(n))]
                number = stop + 1
        return fresh

    def _acknowledge(self, newly: list[Sent], now: float) -> None:
        size, late, latest = 0, 0, newly[0]
        for chunk in newly:
            del self._chunks[chunk.number]
            size += len(chunk.payload)
            if chunk.untold:
                late += len(chunk.payload)
            if chunk.turn > latest.turn:
                latest = chunk
            if self._flight.pop(chunk.turn, None) is not None:
                self.flight_bytes -= len(chunk.payload)
            elif chunk.times == 1 and not chunk.untold:  # was taken for lost and only came late
                self._reorder = min(2 * self._reorder, MAX_REORDER_PACKETS)
        rtt = now - latest.sent_at if latest.times == 1 else None
        if rtt is not None:
            self._measure(rtt)
        if latest.turn > self._acked_turn:
            self._acked_turn, self._acked_sent_at = latest.turn, latest.sent_at
        self._outstanding_bytes -= size
        self._probes = 0
        # what arrived long ago and is only told now would look like a path that is faster than it is
        self.model.acked(now, size - late, rtt, starved=not self._backlog and not self._lost)
        self._find_losses(now)

    def _measure(self, rtt: float) -> None:
        if self._srtt is None:
            self._srtt, self._rttvar = rtt, rtt / 2
        else:
            self._rttvar += (abs(self._srtt - rtt) - self._rttvar) / 4
            self._srtt += (rtt - self._srtt) / 8

    def _find_losses(self, now: float) -> None:
        found = []
        most_turn = self._acked_turn - self._reorder
        most_age = self._acked_sent_at - 9 / 8 * (self._srtt or 1.0)
        for turn, chunk in self._flight.items():
            if turn > most_turn and (chunk.sent_at > most_age or turn > self._acked_turn):
                break
            found.append(chunk)
        for chunk in found:
            del self._flight[chunk.turn]
            self.flight_bytes -= len(chunk.payload)
            if chunk.number <= self._horizon:
                self._lose(chunk, now)
            else:  # not on its way any more, so it takes no room
                chunk.untold = True
                heappush(self._untold, (chunk.number, chunk))
        while self._untold and self._untold[0][0] <= self._horizon:
            chunk = heappop(self._untold)[1]
            if chunk.number in self._chunks:
                self._lose(chunk, now)

    def _lose(self, chunk: Sent, now: float) -> None:
        chunk.untold = False
        self._lost.append(chunk)
        self.model.lost(now, len(chunk.payload), chunk.sent_at)

    # --- out

    def next_chunk(self, now: float) -> Sent | None:
        """Return the next chunk to send now, if the windows have room: lost ones first, then new ones."""
        if not self._probe_due:
            if self._hold_until > now:
                return None
            if self._pace_at > now:
                self._hold_until = self._pace_at + _BURST_SECONDS
                return None
        while self._lost:
            if not self._probe_due and self.flight_bytes >= self.model.window:
                return None
            chunk = self._lost.popleft()
            if chunk.number in self._chunks:
                return self._send(chunk, now)
        if not self._backlog:
            return None
        if len(self._chunks) >= MAX_FLIGHT_CHUNKS:
            return None
        size = min(self.backlog_bytes, self.payload_bytes)
        if self._chunks and (
            self.flight_bytes + size > self.model.window
            # all that is not acknowledged has to fit: else no room were left there for what fills a hole
            or self._outstanding_bytes + size > self._peer_window
        ):
            return None  # one chunk is always allowed: it asks a closed window (RFC 9260 6.1 A)
        return self._send(self._cut(), now)

    def _cut(self) -> Sent:
        protocol, first = self._backlog.popleft()
        most = self.payload_bytes
        if len(first) > most:
            self._backlog.appendleft((protocol, first[most:]))
            payload = bytes(first[:most])
        else:
            parts, size = [first], len(first)
            while self._backlog and self._backlog[0][0] == protocol and size < most:
                _, more = self._backlog.popleft()
                part = more[: most - size]
                if len(part) < len(more):
                    self._backlog.appendleft((protocol, more[len(part) :]))
                parts.append(part)
                size += len(part)
            payload = b"".join(parts)
        self.backlog_bytes -= len(payload)
        chunk = Sent(self._next, protocol, payload)
        self._chunks[self._next] = chunk
        self._outstanding_bytes += len(payload)
        self._next += 1
        return chunk

    def _send(self, chunk: Sent, now: float) -> Sent:
        if not self._flight and not self._probes:
            self._heard_at = now
        self._probe_due = False
        if (rate := self.model.pacing_rate) > 0 and self._srtt:
            rate = max(rate, LEAST_FLIGHT_CHUNKS * self.payload_bytes / self._srtt)
            self._pace_at = max(self._pace_at, now - PACE_SECONDS) + len(chunk.payload) / rate
        chunk.turn = self._turn
        chunk.sent_at = now
        chunk.times += 1
        self._flight[self._turn] = chunk
        self._turn += 1
        self.flight_bytes += len(chunk.payload)
        return chunk

    def tsn_of(self, chunk: Sent) -> int:
        """Return the number of a chunk on the wire."""
        return (self._first + chunk.number) % TSNS

    # --- time

    def deadline(self) -> float | None:
        """Return when `on_timer` is due because nothing came back; None: nothing is on its way."""
        if not self._flight and not self._untold:
            return None
        newest = next(reversed(self._flight.values())).sent_at if self._flight else 0.0
        return max(newest, self._heard_at) + self._probe_seconds()

    def next_send(self, now: float) -> float | None:
        """Return when `next_chunk` has something that only waits for its turn; None: it waits for something
        else.
        """
        if self._hold_until <= now or not (self._backlog or self._lost):
            return None
        if self.flight_bytes + self.payload_bytes > self.model.window:
            return None
        return self._hold_until

    def _probe_seconds(self) -> float:
        if self._srtt is None:
            wait = FIRST_PROBE_SECONDS
        else:
            wait = self._srtt + max(4 * self._rttvar, LEAST_PROBE_SECONDS)
        return float(min(wait * 2 ** min(self._probes, 10), MOST_PROBE_SECONDS))

    def on_timer(self, now: float) -> bool:
        """Handle the timeout: have the oldest chunk sent again. False when it is time to give up."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return True
        if now - self._heard_at > GIVE_UP_SECONDS:
            return False
        self._probes += 1
        self._probe_due = True
        everything = self._probes >= 3  # three times in a row: all of it counts as lost
        if self._probes == 3:
            self.model.silenced()
        for turn in list(self._flight) if everything else list(islice(self._flight, 1)):
            chunk = self._flight.pop(turn)
            self.flight_bytes -= len(chunk.payload)
            self._lost.append(chunk)
        if everything or not self._lost:
            untold, self._untold = self._untold, []
            self._lost += [chunk for _, chunk in untold if chunk.number in self._chunks]
        return True
