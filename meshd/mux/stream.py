"""One stream: a half that sends and a half that receives, in offsets; no frames, no links.

What was written stays here until the peer has acknowledged it, because a link may be lost at any byte:
`rewind` makes all of it unsent again. Bytes received twice are dropped by their offset.

Credit is absolute (the peer may send up to this offset), so a credit that arrives twice or late does no harm.
It is given back when the application has handed bytes on, never when they merely arrived: this is what bounds
memory. A stream's window doubles when its reader empties it within two round trips, which is when the window
and not the reader or the network was the limit (the rule of QUIC implementations).
"""

from bisect import insort
from collections import deque
from collections.abc import Callable

from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import NodeBudget, Priority

_COARSE = 0.004  # seconds; below it a "round trip" says more about event loops than about the path
_SMALL = 2 << 10  # writes below this are gathered while they cannot be sent
_GATHERED = 32 << 10  # gathered so far is closed at this size
_FREE_PIECES = (
    64  # pieces beyond these count as _PIECE_COST bytes each, or one-byte writes would cost 100-fold
)
_PIECE_COST = 128
_MOST_GAPS = 256  # pieces that wait for an earlier one; an honest sender leaves none


class SessionCredit:
    """Receiving side of the session's credit, and the sum of all windows in force."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.granted = window  # told to the peer
        self.received = 0  # sum over streams of the highest offset
        self.consumed = 0
        self.windows = 0  # sum of the windows of live streams

    def receive(self, count: int) -> None:
        """Count `count` new bytes. Raises RemoteProtocolError when the peer had no credit for them."""
        self.received += count
        if self.received > self.granted:
            raise RemoteProtocolError(
                f"{self.received - self.granted} bytes beyond the session's credit", code="credit"
            )

    def due(self) -> bool:
        """Return True if enough has been consumed to be worth a MaxData."""
        return self.consumed + self.window - self.granted >= self.window // 4 + 1

    def grant(self) -> int:
        """Return the credit to send now."""
        self.granted = max(self.granted, self.consumed + self.window)
        return self.granted


class StreamWindow:
    """Receiving side of one stream's credit."""

    def __init__(self, first: int, *, most: int, session: SessionCredit, node: NodeBudget | None) -> None:
        self.size = first
        self.granted = first  # told to the peer
        self.consumed = 0
        self._most = most
        self._session = session
        self._node = node
        self._grown = 0  # taken from the node's budget
        self._since = 0.0  # when the present measure of draining began
        self._mark = 0  # `consumed` at that time
        session.windows += first

    def consume(self, count: int, *, now: float, rtt: Callable[[], float | None]) -> bool:
        """Record that the application handed on `count` bytes; `rtt` returns the round trip under load, if
        known.

        It is called once a window, not with every message. True when enough has been consumed to be worth an
        Ack for the credit alone.
        """
        if not self._since or self.consumed == self._mark:
            self._since = now
        self.consumed += count
        self._session.consumed += count
        if self.consumed - self._mark >= self.size:
            quick = now - self._since < 2 * max(rtt() or 0.0, _COARSE)
            self._mark = self.consumed
            self._since = now
            if quick:
                self._grow()
        return self.consumed + self.size - self.granted >= self.size // 4 + 1

    def grant(self) -> int:
        """Return the credit to send now."""
        self.granted = max(self.granted, self.consumed + self.size)
        return self.granted

    def drain(self, highest: int) -> None:
        """Free what the stream held of the session's credit: nothing up to `highest` will be read."""
        self._session.consumed += highest - self.consumed
        self.consumed = highest
        self.release()

    def release(self) -> None:
        """Free what the window had grown by, for others: the stream is gone. Call it once only."""
        self._session.windows -= self.size
        self.size = 0
        if self._node is not None:
            self._node.give(self._grown)
        self._grown = 0

    def _grow(self) -> None:
        more = min(self.size, self._most - self.size, self._session.window - self._session.windows)
        if more <= 0 or (self._node is not None and not self._node.take(more)):
            return
        self._grown += more
        self.size += more
        self._session.windows += more


Piece = bytes | memoryview


class SendHalf:
    """Bytes on their way out. 0 <= acked <= cursor <= sent <= written, and sent <= credit."""

    __slots__ = (
        "_flying",
        "_gathered",
        "_unsent",
        "acked",
        "credit",
        "cursor",
        "eof",
        "eof_acked",
        "eof_sent",
        "sent",
        "written",
    )

    def __init__(self, credit: int) -> None:
        self.credit = credit  # the peer takes bytes up to this offset
        self.written = self.acked = self.cursor = self.sent = 0
        self.eof = self.eof_sent = self.eof_acked = False
        self._unsent: deque[Piece] = deque()
        self._flying: deque[Piece] = deque()
        self._gathered = bytearray()  # small writes behind _unsent

    def overhead(self) -> int:
        """Return the bytes that the pieces cost beyond their contents."""
        pieces = len(self._unsent) + len(self._flying)
        return (pieces - _FREE_PIECES) * _PIECE_COST if pieces > _FREE_PIECES else 0

    def write(self, data: Piece) -> None:
        """Keep `data`, which is not empty and will not change."""
        size = len(data)
        self.written += size
        if size < _SMALL and (self._unsent or self._gathered):
            self._gathered += data
            if len(self._gathered) >= _GATHERED:
                self._close_gathered()
        else:
            if self._gathered:
                self._close_gathered()
            self._unsent.append(data)

    def pass_on(self, data: Piece, size: int) -> None:
        """Write and take all of it in one step: nothing else waits, and it may be sent."""
        self.written += size
        self.cursor = self.sent = self.written
        self._flying.append(data)

    def sendable(self) -> int:
        """Return the bytes that the stream's own credit allows to be sent now."""
        return min(self.written, self.credit) - self.cursor

    def eof_due(self) -> bool:
        """Return True if everything but the end itself is sent."""
        return self.eof and not self.eof_sent and self.cursor == self.written

    def take(self, count: int, out: list[Piece]) -> None:
        """Move exactly `count` bytes (at most `sendable()`) to `out`, keeping them for replay."""
        self.cursor += count
        if self.cursor > self.sent:
            self.sent = self.cursor
        unsent = self._unsent
        while count:
            if not unsent:
                self._close_gathered()
            piece = unsent[0]
            size = len(piece)
            if size > count:
                view = memoryview(piece)
                unsent[0] = view[count:]
                piece = view[:count]
                size = count
            else:
                unsent.popleft()
            self._flying.append(piece)
            out.append(piece)
            count -= size

    def acknowledge(self, received: int) -> int:
        """Handle an ack of all below `received`; return the bytes freed. Raises RemoteProtocolError."""
        if received > self.sent:
            raise RemoteProtocolError(f"acknowledged {received} bytes of {self.sent} sent", code="ack")
        freed = received - self.acked
        if freed <= 0:
            return 0
        self.acked = received
        in_flight = self.cursor - received
        _drop(self._flying, freed + min(in_flight, 0))
        if in_flight < 0:  # acknowledged on the old link while it is being sent again
            self.cursor = received
            self._close_gathered()
            _drop(self._unsent, -in_flight)
        return freed

    def rewind(self) -> int:
        """Queue everything unacknowledged again; return how many bytes of it had been sent."""
        again = self.cursor - self.acked
        self._unsent.extendleft(reversed(self._flying))
        self._flying.clear()
        self.cursor = self.acked
        self.eof_sent = self.eof_acked
        return again

    def clear(self) -> None:
        """Forget all bytes (the offsets stay)."""
        self._unsent.clear()
        self._flying.clear()
        self._gathered = bytearray()

    def _close_gathered(self) -> None:
        if self._gathered:
            self._unsent.append(bytes(self._gathered))
            self._gathered = bytearray()


def _drop(pieces: deque[Piece], count: int) -> None:
    """Drop the first `count` bytes."""
    while count > 0:
        size = len(pieces[0])
        if size > count:
            pieces[0] = memoryview(pieces[0])[count:]
            return
        pieces.popleft()
        count -= size


class ReceiveHalf:
    """Bytes on their way in. consumed <= received <= highest <= granted."""

    __slots__ = ("_gaps", "acked", "ended", "final", "highest", "received", "told_end", "window")

    def __init__(self, window: StreamWindow) -> None:
        self.window = window
        self.received = 0  # all below it has gone to the application
        self.highest = 0  # of any byte seen: what counts against the session's credit
        self.final: int | None = None  # where the stream ends, once known
        self.ended = False  # all up to `final` is here
        self.acked = 0  # `received` as last told to the peer
        self.told_end = False
        self._gaps: list[tuple[int, bytes]] = []  # pieces beyond `received`, by offset

    def take(self, offset: int, payload: Piece, fin: bool) -> list[Piece]:
        """Return the pieces that are now in order. Raises RemoteProtocolError (credit, a moving end)."""
        end = offset + len(payload)
        if end > self.window.granted:
            raise RemoteProtocolError(
                f"{end - self.window.granted} bytes beyond the stream's credit", code="credit"
            )
        if fin or self.final is not None:
            self._check_end(end, fin)
        if end > self.highest:
            self.highest = end
        pieces: list[Piece] = []
        if offset > self.received:
            self._keep(offset, payload)
        elif end > self.received:
            pieces.append(payload[self.received - offset :] if offset < self.received else payload)
            self.received = end
            if self._gaps:
                self._close_gaps(pieces)
        self.ended = self.received == self.final
        return pieces

    def unread(self) -> int:
        """Return the bytes that the application has, or will get, and has not handed on."""
        return self.highest - self.window.consumed

    def _check_end(self, end: int, fin: bool) -> None:
        if fin and self.final is None and end >= self.highest:
            self.final = end
        if self.final is None or end > self.final or (fin and end != self.final):
            raise RemoteProtocolError("the end of a stream moved", code="end")

    def _keep(self, offset: int, payload: Piece) -> None:
        kept_bytes = sum(len(kept) for _, kept in self._gaps)  # more than the window only if pieces overlap
        if len(self._gaps) >= _MOST_GAPS or kept_bytes + len(payload) > self.window.size:
            raise RemoteProtocolError("too many pieces out of order", code="order")
        if payload and not any(
            start <= offset and offset + len(payload) <= start + len(kept) for start, kept in self._gaps
        ):
            insort(self._gaps, (offset, bytes(payload)))

    def _close_gaps(self, pieces: list[Piece]) -> None:
        while self._gaps and self._gaps[0][0] <= self.received:
            start, kept = self._gaps.pop(0)
            fresh = kept[self.received - start :]
            if fresh:
                pieces.append(fresh)
                self.received += len(fresh)


class StreamState:
    """Both halves of a stream, and its handshake."""

    __slots__ = (
        "accepted",
        "announced",
        "answered",
        "code",
        "ours",
        "priority",
        "reason",
        "receive",
        "resetting",
        "send",
        "service",
        "stream_id",
    )

    def __init__(
        self,
        stream_id: int,
        *,
        service: str,
        priority: Priority,
        ours: bool,
        send: SendHalf,
        receive: ReceiveHalf,
    ) -> None:
        self.stream_id = stream_id
        self.service = service
        self.priority = priority
        self.ours = ours
        self.send = send
        self.receive = receive
        self.accepted = False  # by the application of the side that did not open it
        self.answered = not ours  # the peer is known to know the stream
        self.resetting = False  # we reset it and wait for ResetAck; nothing else matters any more
        self.announced = False  # our Open has been sent on some link
        self.code = 0  # of our reset
        self.reason = ""

    def finished(self) -> bool:
        """Return True if both directions ended and are acknowledged: neither side owes a frame about this
        stream.
        """
        return self.send.eof_acked and self.receive.ended

    def ready(self) -> bool:
        """Return True if the stream itself has something to send."""
        send = self.send
        return not self.resetting and (send.sendable() > 0 or send.eof_due())
