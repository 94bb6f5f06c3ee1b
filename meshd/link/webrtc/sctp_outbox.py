"""The sending half of an SCTP association: bytes and SACKs in, chunks to send out. Pure.

Losses are found as QUIC finds them (RFC 9002 6.1): each transmission has a number, and one is lost when one
that is later by three or more was acknowledged, or one that was sent 9/8 of a round trip later. So a
retransmission that is lost is found as quickly as the first, and an acknowledgement costs what is new in it:
it never walks over what was said before. When nothing comes back, a probe is sent (RFC 9002 6.2), first after
about a round trip, and the window stays what the model of the path says.
"""

from collections import deque
from heapq import heappop, heappush
from itertools import islice

from meshd.link.bbr import ModelWindow
from meshd.link.webrtc.sctp_packet import BINARY, CHUNK_OVERHEAD, MAX_GAPS, TSNS, SackBody, ahead

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
