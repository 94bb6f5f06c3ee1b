"""A durable session with one peer: numbered streams that outlive the links under them. No I/O.

The driver owns sockets and clock. Its loop is: whatever happened (bytes came, the application wrote, a
timer fired), tell the session; act on the events; then call `transmit` for each link until it returns
nothing, and set one timer to `next_timeout()`.

Times are loop time in seconds, sizes are bytes. A RemoteProtocolError from `receive` is the end of the
session: the peer broke the rules, and what it said before may not be believed either.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from meshd.base.errors import Busy, Closed, LocalProtocolError, RemoteProtocolError
from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.events import Event, LinkDead, SessionLost
from meshd.mux.fast_path import FastPath
from meshd.mux.inbound import Inbound
from meshd.mux.link import LinkState
from meshd.mux.outbound import Outbound
from meshd.mux.session_choice import SESSION_ID_BYTES
from meshd.mux.state import State
from meshd.mux.stream import StreamState
from meshd.wire.frame import Goodbye


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
