"""A durable session with one peer: numbered streams that outlive the links under them. No I/O.

The driver owns sockets and clock. Its loop is: whatever happened (bytes came, the application wrote, a
timer fired), tell the session; act on the events; then call `transmit` for each link until it returns
nothing, and set one timer to `next_timeout()`.

Times are loop time in seconds, sizes are bytes. A RemoteProtocolError from `receive` is the end of the
session: the peer broke the rules, and what it said before may not be believed either.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from meshd.base.errors import Busy, Closed, LocalProtocolError, RemoteProtocolError
from meshd.mux.ack_queue import ACK_CRUMB_DELAY
from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.events import Event, LinkDead, SessionLost
from meshd.mux.inbound import Inbound
from meshd.mux.link import ACK_LEAST, LinkState
from meshd.mux.outbound import Outbound
from meshd.mux.session_choice import SESSION_ID_BYTES
from meshd.mux.state import State
from meshd.mux.stream import Piece, StreamState
from meshd.wire.frame import DATA, DATA_OVERHEAD, Ack, Goodbye, LinkAck, data_header


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One attached link. Times in seconds, sizes in bytes, rates in bytes a second."""

    link_id: int
    carries_data: bool
    rtt: float | None  # smoothed
    rtt_min: float | None
    rtt_floor: float | None  # the shortest of the last minutes
    rate: float | None  # what it carried when it was the bottleneck; None before that
    sent: int
    received: int
    last_heard: float  # loop time
    confirmed_at: float  # loop time; when the peer last showed that it hears us

    @classmethod
    def of(cls, link: LinkState, carries_data: bool) -> Self:
        """Return the link's present status."""
        pacing = link.pacing
        return cls(
            link_id=link.link_id,
            carries_data=carries_data,
            rtt=link.rtt,
            rtt_min=pacing.rtt_min,
            rtt_floor=pacing.rtt_floor,
            rate=pacing.full_rate,
            sent=pacing.sent,
            received=link.received,
            last_heard=link.last_heard,
            confirmed_at=link.confirmed_at,
        )


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream. Offsets count bytes of its own direction."""

    stream_id: int
    service: str
    priority: Priority
    ours: bool  # opened by this side
    accepted: bool
    written: int  # taken from the application
    acknowledged: int
    received: int
    consumed: int
    window: int  # receive window in force

    @classmethod
    def of(cls, stream: StreamState) -> Self:
        """Return the stream's present status."""
        window = stream.receive.window
        return cls(
            stream_id=stream.stream_id,
            service=stream.service,
            priority=stream.priority,
            ours=stream.ours,
            accepted=stream.accepted,
            written=stream.send.written,
            acknowledged=stream.send.acked,
            received=stream.receive.received,
            consumed=window.consumed,
            window=window.size,
        )


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """A whole session."""

    session_id: bytes
    data_link: int | None
    links: tuple[LinkStatus, ...]
    streams: tuple[StreamStatus, ...]
    sent: int  # bytes of data that count against the peer's session credit
    received: int  # bytes of data that count against ours
    send_buffered: int  # bytes kept for sending or replay
    receive_buffered: int  # bytes received and not yet consumed
    resent: int  # bytes sent more than once, because a link was lost or changed
    switches: int


class Session:
    """All streams with one peer, over any number of links of which one carries the data.

    `budget` bounds what the windows of all sessions of this node grow by.
    """

    def __init__(
        self,
        *,
        side: Side,
        session_id: bytes,
        config: MuxConfig | None = None,
        budget: NodeBudget | None = None,
    ) -> None:
        if len(session_id) != SESSION_ID_BYTES:
            raise LocalProtocolError(f"session id of {len(session_id)} bytes")
        self._state = state = State(side, session_id, config or MuxConfig(), budget)
        # When `handle_timeout` wants to be called for what came up since this or `next_timeout` was asked.
        # After each call but `receive`, ask `next_timeout`.
        self.take_timer_at: Callable[[], float | None] = state.timer.take
        self._streams = state.streams
        self._sending = state.sending
        self._acks = state.acks
        self._links = state.links
        self._inbound = Inbound(state)
        self._outbound = Outbound(state)
        self.fast_path = FastPath(state)

    @property
    def session_id(self) -> bytes:
        """The id that both sides agreed on (mux/session_choice.py)."""
        return self._state.session_id

    @property
    def data_link(self) -> int | None:
        """The link that carries data now."""
        return self._links.data_link

    # from the application

    def open(self, service: str, metadata: Mapping[str, str | int | bytes], priority: Priority) -> int:
        """Open a stream and return its id; up to the first window may be written at once.

        Raises Busy when `max_streams` are open, LocalProtocolError when the metadata is too large, Closed.
        """
        self._check_open()
        most, streams = self._state.config.max_streams, self._streams
        if len(streams.by_id) >= most:
            live = sum(stream.ours and not stream.finished() for stream in streams.by_id.values())
            if live >= most:
                raise Busy(f"{live} streams to this peer are open, which is the maximum")
        return streams.open(service, metadata, priority)

    def accept(self, stream_id: int) -> None:
        """Tell the opener that this side's application took the stream (refuse with `reset`)."""
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.resetting:
            return
        if stream.ours:
            raise LocalProtocolError(f"stream {stream_id} is our own, the peer accepts it")
        stream.accepted = True
        self._acks.want(stream, self._state.now, urgent=True)

    def write(self, stream_id: int, data: bytes | bytearray | memoryview) -> int:
        """Take bytes to send and return how many; fewer than given: wait for Writable, give the rest again.

        Bytes and read-only views are kept by reference. Raises LocalProtocolError after `write_eof`,
        Closed when the stream is gone.
        """
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.resetting:
            raise self._gone(stream_id)
        if stream.send.eof:
            raise LocalProtocolError(f"stream {stream_id}: write after the end")
        return self._sending.write(stream, data)

    def write_eof(self, stream_id: int) -> None:
        """End our direction; the other one stays open. Idempotent. Raises Closed."""
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.resetting:
            raise self._gone(stream_id)
        self._sending.write_eof(stream)

    def reset(self, stream_id: int, code: int, reason: str) -> None:
        """Reset the stream in both directions, as TCP's RST; nothing if it is gone already."""
        state = self._state
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.resetting:
            return
        if stream.finished() or not (stream.announced or stream.answered):
            state.drop(stream)
            state.forget(stream)
        else:
            state.start_reset(stream, code, reason)
        state.wake_writers()

    def consumed(self, stream_id: int, count: int) -> bool:
        """Give the peer credit for `count` bytes of DataReceived that the application has handed on.

        True when that is worth sending at once.
        """
        state = self._state
        stream = self._streams.by_id.get(stream_id)
        if stream is None or stream.resetting:
            return False
        receive = stream.receive
        if not 0 <= count <= receive.received - receive.window.consumed:
            raise LocalProtocolError(f"stream {stream_id}: {count} bytes consumed that were not received")
        due = receive.window.consume(count, now=state.now, rtt=self._links.rtt)
        if receive.ended:
            state.forget_if_finished(stream)
            return True
        if due:
            self._acks.want(stream, state.now, urgent=True)
            return True
        return self._streams.credit.due()

    def ping(self, link_id: int, now: float) -> int:
        """Send a ping at the next `transmit`; its PongReceived carries the id returned. Raises Closed."""
        self._check_open()
        link = self._links.by_id.get(link_id)
        if link is None:
            raise Closed(f"link {link_id} is gone")
        number = self._links.new_ping()
        link.ask(number)
        return number

    def goodbye(self, code: int, reason: str) -> None:
        """End the session on purpose: sent on every link by the next `transmit`; streams are void at once."""
        if not self._state.over:
            self._state.say_goodbye(Goodbye(code, reason))

    # from the links

    def link_up(self, link_id: int, now: float) -> list[Event]:
        """Attach a link on which both Hellos have passed. The leader's first carries data at once."""
        state = self._state
        self._check_open()
        self._links.add(link_id, now)
        state.now = now
        if state.side == "leader" and self._links.data_link is None:
            state.lead_to(link_id)
        return state.drain_events()

    def link_down(self, link_id: int, now: float) -> list[Event]:
        """Detach a lost link (idempotent). The leader moves data to another attached one, if there is one."""
        self._state.now = now
        self._state.unlink(link_id, now)
        return self._state.drain_events()

    def switch_to(self, link_id: int, now: float) -> list[Event]:
        """Move the data to this link (leader only), unless it carries the data already or is gone."""
        state = self._state
        state.now = now
        if link_id != self._links.data_link and link_id in self._links.by_id and not state.over:
            state.lead_to(link_id)
        return state.drain_events()

    def receive(self, link_id: int, data: bytes | memoryview, now: float) -> list[Event]:
        """Handle bytes of a link, in order. Raises RemoteProtocolError, and then the session is over."""
        state = self._state
        state.now = now
        link = self._links.by_id.get(link_id)
        if link is None or state.over:
            return state.drain_events()
        ripe_at = link.heard(len(data), now)
        if ripe_at is not None:
            state.timer.want(ripe_at)
        act = self._inbound.act
        try:
            for frame in link.parser.feed(data):
                act(link, frame)
                if self._state.over:
                    break
        except RemoteProtocolError as error:
            state.end(error.what)
            state.events.clear()
            raise
        if self._sending.blocked:
            state.wake_writers()
        return state.drain_events()

    def due(self, link_id: int, now: float) -> bool:
        """Return True if `transmit` is worth a call for this link; acknowledgements that can wait are not.

        Cheaper than the call: most of what comes in asks for nothing.
        """
        link = self._links.by_id.get(link_id)
        return link is not None and bool(
            self._sending.schedule.waiting
            or link.control_due()
            or link.ack_due(now)
            or self._streams.control_due()
            or self._acks.worth_sending(now)
        )

    def transmit(self, link_id: int, now: float, budget: int) -> list[bytes | memoryview]:
        """Return buffers to send on this link, in order, about `budget` bytes; empty when nothing is to be
        sent.
        """
        self._state.now = now
        link = self._links.by_id.get(link_id)
        return [] if link is None else self._outbound.transmit(link, now, budget)

    @property
    def limited(self) -> bool:
        """True if this node's upload is limited; fixed from its start."""
        return self._state.upload is not None

    def next_timeout(self) -> float | None:
        """Return when `handle_timeout` is due (and `transmit` after it); may change with any call."""
        state = self._state
        state.timer.take()
        if state.events:
            return state.now
        if state.over:
            return None
        times = [link.next_timeout() for link in self._links.by_id.values()]
        times.extend(
            at for at in (self._acks.at, self._links.grace_at, self._sending.upload_at) if at is not None
        )
        return min(times, default=None)

    def handle_timeout(self, now: float) -> list[Event]:
        """Look at the clock: dead links, pings that are due, late acknowledgements, the grace."""
        state = self._state
        state.now = now
        if state.over:
            return state.drain_events()
        self._acks.ripen(now)
        self._sending.upload_ripe(now)
        for link in list(self._links.by_id.values()):
            link.ripen(now)
            why = link.dead(now)
            if why:
                state.events.append(LinkDead(link.link_id, why))
                state.unlink(link.link_id, now)
            elif link.ping_due(now):
                link.pings_due.append(self._links.new_ping())
        if self._links.grace_at is not None and now >= self._links.grace_at:
            why = f"no link for {state.config.grace:g} s"
            state.end(why)
            state.events.append(SessionLost(why))
        return state.drain_events()

    def links(self) -> tuple[LinkStatus, ...]:
        """Return the links as in `status`, without the cost of all streams."""
        links = self._links
        return tuple(LinkStatus.of(link, link.link_id == links.data_link) for link in links.by_id.values())

    def status(self) -> SessionStatus:
        """Return the whole session as plain values."""
        streams, sending = self._streams, self._sending
        return SessionStatus(
            session_id=self._state.session_id,
            data_link=self._links.data_link,
            links=self.links(),
            streams=tuple(StreamStatus.of(stream) for stream in streams.by_id.values()),
            sent=sending.sent,
            received=streams.credit.received,
            send_buffered=sending.buffered,
            receive_buffered=streams.credit.received - streams.credit.consumed,
            resent=sending.resent,
            switches=self._links.switches,
        )

    def _check_open(self) -> None:
        if self._state.over:
            raise Closed(f"the session is over: {self._state.over}")

    def _gone(self, stream_id: int) -> Closed:
        self._check_open()
        return Closed(f"stream {stream_id} is gone")


MOST_FAST_BYTES = 64 << 10  # bytes of a message: of a longer one, the steps are not what costs
_MOST_READ_BYTES = MOST_FAST_BYTES + 128  # with the header, and acknowledgements before it
_COPY_BELOW = 2 << 10  # bytes of a payload: copying fewer costs less than to make a view


class FastPath:
    """Sends and receives one small message of an otherwise idle session: many steps combined into one.

    A question and its answer, a token say, meet an idle session each time, and caches that the model has
    emptied meanwhile: each step costs a microsecond or more there, and half of them look for work that is not
    due. All that is not plain here is left to the long way (inbound.py, outbound.py), with nothing changed.
    Both ways leave the same behind; only acknowledgements that wait for company may go up to ACK_CRUMB_DELAY
    later on this one.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._streams = state.streams
        self._sending = state.sending
        self._acks = state.acks
        self._links = state.links

    def send(self, link_id: int, stream_id: int, data: bytes, now: float) -> list[Piece] | None:
        """Write and transmit at once: return what to send, or None, with nothing done, if more may be due."""
        state = self._state
        link = self._links.by_id.get(link_id)
        stream = self._streams.by_id.get(stream_id)
        # Anything due beside this message takes the slow path.
        size = len(data)
        if (
            link is None
            or stream is None
            or stream.resetting
            or not 0 < size <= MOST_FAST_BYTES
            or link_id != self._links.data_link
            or link.awaits_resume
            or now < link.hold_until
            or self._sending.schedule.waiting
            or state.upload is not None
            or self._streams.control_due()
            or link.control_due()
        ):
            return None
        send, pacing = stream.send, link.pacing
        room = pacing.allowance() - pacing.sent + pacing.acked - size - DATA_OVERHEAD
        if send.eof or send.cursor != send.written or room < 0:
            return None  # smaller frames would all leave at once, too, and nothing could come in between
        offset = send.written
        if not self._sending.pass_on(stream, data, size):
            return None
        # Nothing stops us: acknowledgements that are due go in front.
        state.now = now
        acks = self._acks
        out: list[Piece] = []
        if (
            acks.ripe
            or acks.late
            or link.received - link.acked >= ACK_LEAST
            or now - acks.company_at >= ACK_CRUMB_DELAY
        ):
            acks.acknowledge(link, now, out, carries=True)
        out.append(data_header(stream_id, offset, size, False))
        out.append(data)
        pacing.on_sent(sum(map(len, out)), now, starved=room > 0)
        return out

    def receive(self, link_id: int, data: Piece, now: float) -> tuple[int, Piece, bool] | None:
        """Receive one Data frame that comes in order, with only acknowledgements before it. Return its
        stream, its payload, and whether there may be something to send now (`Session.due` knows).

        Returns None, with nothing done, for anything else; violations take the slow path, too.
        """
        state = self._state
        link = self._links.by_id.get(link_id)
        if link is None or len(data) > _MOST_READ_BYTES or self._sending.blocked or state.events:
            return None
        # Acknowledgements may come first.
        at = 0
        acks: Sequence[LinkAck | Ack] = ()
        if data[0] != DATA:
            found = link.parser.acks_before_data(data)
            if found is None or not self._are_plain(found[0]):
                return None
            acks, at = found
        # Then exactly one whole Data frame, in order.
        head = link.parser.whole(data, at)
        if head is None:
            return None
        stream_id, offset = head
        at += DATA_OVERHEAD
        stream = self._streams.by_id.get(stream_id)
        if stream is None or not self._is_next(stream, offset, len(data) - at):
            return None
        # From here on the state changes: count bytes, acknowledgements, data.
        state.now = now
        ripe_at = link.heard(len(data), now)
        if ripe_at is not None:
            state.timer.want(ripe_at)
        for ack in acks:
            if isinstance(ack, LinkAck):
                link.on_link_ack(ack.received, now)
            else:
                own = self._streams.by_id[ack.stream_id]
                self._sending.acknowledge(own, ack.received, ack.credit, ended=False)
        payload: Piece = data[at:] if len(data) < _COPY_BELOW else memoryview(data)[at:]
        urgent = self._take(stream, len(payload), now)
        return stream_id, payload, urgent or bool(acks) or link.received - link.acked >= ACK_LEAST

    def _are_plain(self, acks: Sequence[LinkAck | Ack]) -> bool:
        """Return True if the acknowledgements do nothing but acknowledge and give credit."""
        for ack in acks:
            if isinstance(ack, LinkAck):
                continue
            stream = self._streams.by_id.get(ack.stream_id)
            if (
                stream is None
                or stream.resetting
                or not stream.answered
                or ack.ended
                or ack.received > stream.send.sent
                or (ack.accepted and stream.ours and not stream.accepted)
            ):
                return False
        return True

    def _is_next(self, stream: StreamState, offset: int, size: int) -> bool:
        """Return True if these bytes come in order, to a stream that takes them."""
        receive, credit = stream.receive, self._streams.credit
        return (
            not stream.resetting
            and stream.answered
            and offset == receive.received
            and offset == receive.highest
            and receive.final is None
            and offset + size <= receive.window.granted
            and credit.received + size <= credit.granted
        )

    def _take(self, stream: StreamState, size: int, now: float) -> bool:
        """Count received bytes; True if their acknowledgement is urgent."""
        receive, acks = stream.receive, self._acks
        receive.received = receive.highest = end = receive.received + size
        self._streams.credit.receive(size)
        urgent = end - receive.acked > receive.window.size // 4
        if urgent or acks.at is None or stream.stream_id not in acks.due:
            acks.want(stream, now, urgent=urgent)
        return urgent
