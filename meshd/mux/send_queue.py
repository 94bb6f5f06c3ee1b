"""Outgoing data: how much writers may add, which stream is next, and the peer's credit.

Interactive streams go before bulk, round robin within each. Every turn is one frame of at most the same size,
so streams that always have data get equal bytes. One turn in 16 goes to bulk even while interactive data
waits: an endless interactive stream must not stop a load.

Frames of data are made here, next to what they count against. Nothing is copied: a frame is a header and the
very pieces that were written. outbound.py limits what the link and the node carry.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import MuxConfig, Priority
from meshd.mux.stream import Piece, StreamState
from meshd.wire.frame import DATA_OVERHEAD, data_header

_BULK_TURN = 16
_WAKE_BYTES = 32 << 10  # room that is worth waking a writer for
_LEAST = 4 << 10  # what a frame may hold even if less room is left: crumbs cost more than they save


class Schedule:
    """Two rings of stream ids."""

    def __init__(self) -> None:
        self._rings: tuple[deque[int], deque[int]] = (deque(), deque())
        self.waiting: set[int] = set()  # all of them
        self._turns = 0  # of interactive streams while bulk waited

    def add(self, stream_id: int, priority: Priority) -> None:
        """Queue a stream that has something to send, unless it waits already."""
        if stream_id not in self.waiting:
            self.waiting.add(stream_id)
            self._rings[priority].append(stream_id)

    def next(self) -> int | None:
        """Return the next stream and take it out of its ring; `add` it again if it has more."""
        interactive, bulk = self._rings
        ring = interactive
        if bulk and (not interactive or self._turns >= _BULK_TURN - 1):
            ring = bulk
        if not ring:
            return None
        self._turns = self._turns + 1 if ring is interactive and bulk else 0
        stream_id = ring.popleft()
        self.waiting.discard(stream_id)
        return stream_id

    def remove(self, stream_id: int, priority: Priority) -> None:
        """Remove a stream that is gone."""
        if stream_id in self.waiting:
            self.waiting.discard(stream_id)
            self._rings[priority].remove(stream_id)


class SendQueue:
    """The outgoing data of a session's streams. Sizes in bytes."""

    def __init__(self, config: MuxConfig) -> None:
        self._stream_window = config.max_stream_window
        self._session_window = config.session_window
        self.schedule = Schedule()
        self.blocked: dict[int, StreamState] = {}  # streams whose writer waits, in order
        self.peer_credit = config.session_window  # what we may send, absolute
        self.sent = 0  # sum over streams of the highest offset sent
        self.buffered = 0
        self.resent = 0
        self.upload_at: float | None = None  # when there may be room for data that waits for the node's limit

    # from writers

    def room(self, stream: StreamState) -> int:
        """Return the bytes that a write may add now."""
        send = stream.send
        most = self._stream_window - (send.written - send.acked) - send.overhead()
        return max(min(send.credit - send.written, most, self._session_window - self.buffered), 0)

    def write(self, stream: StreamState, data: Piece | bytearray) -> int:
        """Take as much as there is room for; return how much. If that is not all, the writer waits."""
        size = len(data)
        room = self.room(stream)
        if size > room:
            self.blocked[stream.stream_id] = stream
            if not room:
                return 0
            data = memoryview(data)[:room]
            size = room
        elif not size:
            return 0
        if isinstance(data, bytearray) or (isinstance(data, memoryview) and not data.readonly):
            data = bytes(data)
        send = stream.send
        send.write(data)
        self.buffered += size
        if send.cursor < send.credit:
            self.schedule.add(stream.stream_id, stream.priority)
        return size

    def write_eof(self, stream: StreamState) -> None:
        """End the stream's data: no more bytes follow."""
        stream.send.eof = True
        self.blocked.pop(stream.stream_id, None)
        if stream.ready():
            self.schedule.add(stream.stream_id, stream.priority)

    def pass_on(self, stream: StreamState, data: bytes, size: int) -> bool:
        """Write and send all of it at once, if nothing else waits; False, with nothing done, without room."""
        send = stream.send
        most = self._stream_window - (send.written - send.acked) - send.overhead()
        if (
            size > self.peer_credit - self.sent
            or size > most
            or size > send.credit - send.written
            or size > self._session_window - self.buffered
        ):
            return False
        send.pass_on(data, size)
        self.buffered += size
        self.sent += size
        return True

    def woken(self) -> list[int]:
        """Return the streams whose writers now have room worth waking for, and stop their waiting."""
        woken = []
        for stream_id, stream in list(self.blocked.items()):
            send = stream.send
            room = self.room(stream)
            idle = send.acked == send.written
            if room and (idle or room >= min(_WAKE_BYTES, (send.credit - send.acked) // 2)):
                del self.blocked[stream_id]
                woken.append(stream_id)
        return woken

    # to the link

    def frames(self, streams: Mapping[int, StreamState], out: list[Piece], room: int, most: int) -> bool:
        """Append Data frames until there is no room; True if there was room and nothing to send."""
        schedule = self.schedule
        held_back = 0  # streams in a row that only the session's credit stops
        while room > 0:
            stream_id = schedule.next()
            if stream_id is None:
                return True
            stream = streams[stream_id]
            size = self._frame(stream, min(most, max(room, _LEAST)), out)
            if stream.ready():
                schedule.add(stream_id, stream.priority)
            room -= size
            held_back = 0 if size else held_back + 1
            if held_back > len(schedule.waiting):
                return True
        return False

    def _frame(self, stream: StreamState, most: int, out: list[Piece]) -> int:
        """Append one Data frame of this stream; return its size, 0 if the session's credit forbids it."""
        send = stream.send
        size = min(send.sendable(), most)
        fresh = send.cursor + size - send.sent
        if fresh > 0:
            beyond = self.sent + fresh - self.peer_credit
            if beyond > 0:
                size -= beyond
                fresh -= beyond
        start = send.cursor
        fin = send.eof and not send.eof_sent and start + size == send.written
        if size <= 0 and not fin:
            return 0
        out.append(data_header(stream.stream_id, start, size, fin))
        if size:
            send.take(size, out)
        if fresh > 0:
            self.sent += fresh
        send.eof_sent = send.eof_sent or fin
        return size + DATA_OVERHEAD

    def wait_for_upload(self, at: float) -> None:
        """Wait for the node's upload budget until `at`."""
        self.upload_at = at

    def upload_ripe(self, now: float) -> None:
        """End the wait for upload; the next call of `frames` finds out whether there is more."""
        if self.upload_at is not None and now >= self.upload_at:
            self.upload_at = None

    # from the peer

    def acknowledge(self, stream: StreamState, received: int, credit: int, ended: bool) -> None:
        """Record that the peer has all below `received`, takes bytes up to `credit`, and perhaps knows the
        end.
        """
        send = stream.send
        self.buffered -= send.acknowledge(received)
        if ended and not send.eof_acked:
            if not send.eof or received != send.written:
                raise RemoteProtocolError("an end was acknowledged that had not been sent", code="ack")
            send.eof_sent = send.eof_acked = True
        if credit > send.credit:
            send.credit = credit
            if stream.ready():
                self.schedule.add(stream.stream_id, stream.priority)

    def grant(self, credit: int) -> None:
        """Raise the peer's credit for all streams together to `credit` bytes."""
        self.peer_credit = max(self.peer_credit, credit)

    def never_arrived(self, stream: StreamState, received: int) -> None:
        """Uncount bytes that never arrived on a stream that the peer has reset."""
        self.sent -= stream.send.sent - received
        stream.send.sent = received

    # streams and links

    def drop(self, stream: StreamState) -> None:
        """Drop everything of this stream that is not sent."""
        send = stream.send
        self.buffered -= send.written - send.acked
        send.acked = send.cursor = send.written = send.sent
        send.clear()
        self.forget(stream)

    def forget(self, stream: StreamState) -> None:
        """Remove the stream from the schedule and the waiting writers."""
        self.schedule.remove(stream.stream_id, stream.priority)
        self.blocked.pop(stream.stream_id, None)

    def rewind(self, streams: Iterable[StreamState]) -> None:
        """Queue everything unacknowledged again, for another link."""
        for stream in streams:
            self.resent += stream.send.rewind()
            if stream.ready():
                self.schedule.add(stream.stream_id, stream.priority)

    def end(self) -> None:
        """Drop everything: the session is over."""
        self.blocked.clear()
        self.schedule = Schedule()
        self.buffered = 0
