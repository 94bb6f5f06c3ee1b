"""Outgoing acknowledgements: which streams owe one, and how long it may wait to be batched.

An Ack with every small message would cost both sides more than it tells, so it goes with data that goes
anyway, or when its time has come.
"""

from meshd.base.errors import RemoteProtocolError
from meshd.mux.link import LinkState
from meshd.mux.stream import Piece, StreamState
from meshd.mux.stream_table import MOST_LATE, StreamTable
from meshd.wire.frame import Ack, Data, LinkAck, MaxData, ack_frame, encode

ACK_DELAY = 0.1  # seconds that an Ack waits for data to travel with
ACK_CRUMB_DELAY = 0.04  # seconds after which one of a few bytes travels with any data
_ACK_CRUMB = 16 << 10  # bytes of a stream that are acknowledged with company only if they have waited


class DueTimer:
    """Called for every message, so it reports only changes."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: float | None = None

    def want(self, at: float) -> None:
        """Request the timer at `at`, unless it is due earlier."""
        if self._at is None or at < self._at:
            self._at = at

    def take(self) -> float | None:
        """Return and clear the time requested since the last call."""
        at, self._at = self._at, None
        return at


class AckQueue:
    """The acknowledgements that a session's streams owe. Times are loop time."""

    def __init__(self, streams: StreamTable, timer: DueTimer) -> None:
        self._streams = streams
        self._credit = streams.credit
        self._timer = timer
        self.due: dict[int, None] = {}
        self.at: float | None = None  # when they go even without company
        self.ripe = False
        self.company_at = 0.0  # when acknowledgements last had company to go with
        self.late: dict[int, Ack] = {}  # answers about streams that are forgotten

    def want(self, stream: StreamState, now: float, *, urgent: bool) -> None:
        """Queue an Ack for this stream: with the next data, after a short delay, or at once (`urgent`)."""
        self.due[stream.stream_id] = None
        if urgent:
            self.ripe = True
        elif self.at is None and not self.ripe:
            self.at = now + ACK_DELAY
            self._timer.want(self.at)

    def ripen(self, now: float) -> None:
        """Make acknowledgements due whose delay is over."""
        if self.at is not None and now >= self.at:
            self.at = None
            self.ripe = True

    def worth_sending(self, now: float) -> bool:
        """Return True if acknowledgements are worth sending without data."""
        if self.at is not None and now >= self.at:
            self.ripen(now)
        return self.ripe or bool(self.late) or self._credit.due()

    def acknowledge(self, link: LinkState, now: float, out: list[Piece], *, carries: bool) -> None:
        """Append all acknowledgements to data that is sent anyway, but not small ones each time."""
        self.company_at = now
        # Acknowledge the bytes of the link itself.
        received = link.ack(now)
        if received is not None:
            out.append(encode(LinkAck(received)))
        if not carries:
            return
        # On the data link: the session's credit, and repeated acknowledgements.
        credit = self._credit
        if credit.due():
            out.append(encode(MaxData(credit.grant())))
        if self.late:
            out.extend(map(encode, self.late.values()))
            self.late.clear()
        # Then one Ack for each stream that owes one; small ones wait for company.
        self.ripen(now)
        crumbs = self.ripe or (self.at is not None and now >= self.at - ACK_DELAY + ACK_CRUMB_DELAY)
        streams = self._streams.by_id
        for stream_id in list(self.due):
            stream = streams[stream_id]
            receive = stream.receive
            if not crumbs and receive.received - receive.acked < _ACK_CRUMB and not receive.ended:
                continue
            del self.due[stream_id]
            receive.acked = receive.received
            receive.told_end = receive.ended
            accepted = stream.accepted and not stream.ours
            out.append(
                ack_frame(stream_id, receive.received, receive.window.grant(), accepted, receive.ended)
            )
        if not self.due:
            self.at = None
        self.ripe = False

    def answer_late(self, data: Data) -> None:
        """Repeat the acknowledgement of a forgotten stream, all of which arrived once."""
        late = self.late
        end = data.offset + len(data.payload)
        before = late.get(data.stream_id)
        ended = data.fin or (before is not None and before.ended)
        end = max(end, before.received if before is not None else 0)
        late[data.stream_id] = Ack(data.stream_id, end, end, accepted=True, ended=ended)
        if len(late) > MOST_LATE:
            raise RemoteProtocolError("too many frames for streams that have ended", code="stream")

    def drop(self, stream: StreamState) -> None:
        """Drop the Ack of this stream, which is worthless now."""
        self.due.pop(stream.stream_id, None)

    def forget(self, stream: StreamState) -> None:
        """Forget the stream, but keep an acknowledgement of its end that is still due."""
        stream_id = stream.stream_id
        if stream_id in self.due:
            del self.due[stream_id]
            if stream.receive.ended and not stream.receive.told_end:
                end = stream.receive.received
                self.late[stream_id] = Ack(stream_id, end, end, accepted=True, ended=True)

    def clear(self) -> None:
        """Forget what is due: the Resume on another link says it all."""
        self.due.clear()
        self.at = None
        self.ripe = False

    def end(self) -> None:
        """Stop the timer: the session is over."""
        self.at = None
