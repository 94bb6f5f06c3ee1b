"""What a session knows, shared by the parts that act on it (session, inbound, outbound).

Here are the rules about streams as a whole: when one is forgotten, what a lost or changed link means, how
the session's credit is settled. No frames are made or read here.
"""

from meshd.base.errors import LocalProtocolError
from meshd.mux.config import MuxConfig, NodeBudget, Side
from meshd.mux.events import Event, Switched, Writable
from meshd.mux.link import LinkState
from meshd.mux.schedule import Schedule
from meshd.mux.stream import Stream
from meshd.mux.window import SessionCredit
from meshd.wire.frame_types import Ack, Goodbye

ACK_DELAY = 0.1  # seconds that an Ack waits for data to travel with
ACK_CRUMB_DELAY = 0.04  # seconds after which one of a few bytes travels with any data
_WAKE_BYTES = 32 << 10  # room that is worth waking a writer for


class State:
    """All of it; see the comments. Times are loop time."""

    def __init__(self, side: Side, session_id: bytes, config: MuxConfig, budget: NodeBudget | None) -> None:
        self.side: Side = side
        self.session_id = session_id
        self.config = config
        self.budget = budget
        self.upload = budget.upload if budget is not None else None
        self.upload_at: float | None = None  # when there may be room for data that waits for `upload`
        self.now = 0.0  # as last heard from the driver
        self.over = ""  # why nothing is possible any more
        self.goodbye: Goodbye | None = None
        self.events: list[Event] = []

        self.streams: dict[int, Stream] = {}
        self.next_own = 0 if side == "leader" else 1
        self.next_peer = 1 if side == "leader" else 0  # all lower ids of the peer's have been seen
        self.schedule = Schedule()
        self.blocked: dict[int, None] = {}  # streams whose writer waits, in order

        self.credit = SessionCredit(config.session_window)  # what the peer may send
        self.peer_credit = config.session_window  # what we may send, absolute
        self.sent = 0  # sum over streams of the highest offset sent
        self.send_buffered = 0

        self.links: dict[int, LinkState] = {}
        self.data_link: int | None = None
        self.sequence = 0  # of the last Switch
        self.linked_before = False
        self.grace_at: float | None = None
        self.next_ping = 1

        self.opens_due: dict[int, bytes] = {}  # in order of id
        self.opens: dict[int, bytes] = {}  # encoded, until the peer is known to have them
        self.resets_due: dict[int, None] = {}
        self.acks_due: dict[int, None] = {}
        self.acks_at: float | None = None  # when they go even without company
        self.acks_ripe = False
        self.acknowledged_at = 0.0  # when acknowledgements last had company to go with
        self.timer_at: float | None = None  # due then: what came up since times were last asked for
        self.late_acks: dict[int, Ack] = {}  # answers about streams that are forgotten
        self.late_reset_acks: dict[int, None] = {}
        self.resent = 0
        self.switches = 0

    def is_own(self, stream_id: int) -> bool:
        """Is this the id of a stream that we open?"""
        return stream_id % 2 == self.next_own % 2

    def drain_events(self) -> list[Event]:
        """Events so far, handed over."""
        events = self.events
        self.events = []
        return events

    def new_ping(self) -> int:
        """A number for the next ping."""
        self.next_ping = self.next_ping % 0xFFFFFFFF + 1
        return self.next_ping

    def rtt(self) -> float | None:
        """Round trip of the data link under load, if known."""
        link = self.links.get(self.data_link) if self.data_link is not None else None
        return None if link is None else (link.pacing.rtt_loaded or link.rtt)

    # streams

    def want_ack(self, stream: Stream, *, now: bool) -> None:
        """An Ack of this stream goes with the next data, or when it has waited, or at once (`now`)."""
        self.acks_due[stream.stream_id] = None
        if now:
            self.acks_ripe = True
        elif self.acks_at is None and not self.acks_ripe:
            self.acks_at = self.now + ACK_DELAY
            self.want_timer(self.acks_at)

    def want_timer(self, at: float) -> None:
        """Something is due at `at` now that was not before."""
        if self.timer_at is None or at < self.timer_at:
            self.timer_at = at

    def ripen(self, now: float) -> None:
        """Acks that have waited their time are due."""
        if self.acks_at is not None and now >= self.acks_at:
            self.acks_at = None
            self.acks_ripe = True

    def acks_worth_sending(self, now: float) -> bool:
        """Are acknowledgements worth sending without company?"""
        if self.acks_at is not None and now >= self.acks_at:
            self.ripen(now)
        return self.acks_ripe or bool(self.late_acks) or self.credit.due()

    def acks_waited(self, now: float) -> bool:
        """Have acks waited long enough to go with any data?"""
        return self.acks_at is not None and now >= self.acks_at - ACK_DELAY + ACK_CRUMB_DELAY

    def stream_control_due(self) -> bool:
        """Are there control frames about streams, beside acknowledgements?"""
        return bool(self.opens_due or self.resets_due or self.late_reset_acks)

    def answer(self, stream: Stream) -> None:
        """The peer is known to know the stream: its Open need not be repeated."""
        if not stream.answered:
            stream.answered = True
            self.opens.pop(stream.stream_id, None)
            self.opens_due.pop(stream.stream_id, None)

    def room(self, stream: Stream) -> int:
        """Bytes that a write may add now."""
        send = stream.send
        most = self.config.max_stream_window - (send.written - send.acked) - send.overhead()
        return max(min(send.credit - send.written, most, self.config.session_window - self.send_buffered), 0)

    def wake_writers(self) -> None:
        """Say Writable for those writers that now have room worth waking for."""
        for stream_id in list(self.blocked):
            stream = self.streams[stream_id]
            send = stream.send
            room = self.room(stream)
            idle = send.acked == send.written
            if room and (idle or room >= min(_WAKE_BYTES, (send.credit - send.acked) // 2)):
                del self.blocked[stream_id]
                self.events.append(Writable(stream_id))

    def drop_sending(self, stream: Stream) -> None:
        """Nothing more of this stream will be sent."""
        send = stream.send
        self.send_buffered -= send.written - send.acked
        send.acked = send.cursor = send.written = send.sent
        send.clear()
        self.schedule.remove(stream.stream_id, stream.priority)
        self.blocked.pop(stream.stream_id, None)

    def drop_receiving(self, stream: Stream) -> None:
        """Nothing more of this stream will be read: what it held of the session's credit is free."""
        self.credit.consumed += stream.receive.unread()
        stream.receive.window.consumed = stream.receive.highest
        stream.receive.window.release()

    def forget(self, stream: Stream) -> None:
        """Nothing is owed about this stream any more; its id never comes back."""
        stream_id = stream.stream_id
        del self.streams[stream_id]
        self.opens.pop(stream_id, None)
        self.opens_due.pop(stream_id, None)
        self.resets_due.pop(stream_id, None)
        self.blocked.pop(stream_id, None)
        self.schedule.remove(stream_id, stream.priority)
        stream.receive.window.release()
        if stream_id in self.acks_due:
            del self.acks_due[stream_id]
            if stream.receive.ended and not stream.receive.told_end:
                end = stream.receive.received
                self.late_acks[stream_id] = Ack(stream_id, end, end, accepted=True, ended=True)

    def forget_if_finished(self, stream: Stream) -> None:
        """Both directions are done and everything has been read."""
        if stream.finished() and not stream.resetting and not stream.receive.unread():
            self.forget(stream)

    def end(self, why: str) -> None:
        """The session is over: nothing is kept, nothing is possible."""
        self.over = why
        for stream in self.streams.values():
            stream.receive.window.release()
            stream.send.clear()
        self.streams.clear()
        self.blocked.clear()
        self.schedule = Schedule()
        self.send_buffered = 0
        self.data_link = None
        self.grace_at = self.acks_at = None

    # links

    def carry_on(self, link_id: int) -> None:
        """From now on this link carries data: all that is not known to have arrived is sent on it."""
        self.data_link = link_id
        self.switches += 1
        self.links[link_id].resume_due = True
        for stream in self.streams.values():
            self.resent += stream.send.rewind()
            if stream.ready():
                self.schedule.add(stream.stream_id, stream.priority)
        self.opens_due = dict(sorted(self.opens.items()))
        self.resets_due = {s.stream_id: None for s in self.streams.values() if s.resetting}
        self.acks_due.clear()  # Resume says it all
        self.acks_at = None
        self.acks_ripe = False
        self.events.append(Switched(link_id))

    def lead_to(self, link_id: int) -> None:
        """The leader's choice: carry on there and say so."""
        if self.side != "leader":
            raise LocalProtocolError("only the leader says which link carries data")
        self.sequence += 1
        self.carry_on(link_id)
        self.links[link_id].switch_due = self.sequence

    def unlink(self, link_id: int, now: float) -> None:
        """A link is gone. The leader moves on to the best of those left."""
        if self.links.pop(link_id, None) is None:
            return
        if not self.links:
            self.grace_at = now + self.config.grace
        if link_id != self.data_link:
            return
        self.data_link = None
        if not self.links:
            self.events.append(Switched(None))
        elif self.side == "leader":
            self.lead_to(min(self.links.values(), key=_order).link_id)
        else:
            self.events.append(Switched(None))
            for link in self.links.values():
                link.lost_due = self.sequence


def _order(link: LinkState) -> tuple[bool, float, int]:
    """Links that are known to be quick first."""
    return link.rtt is None, link.rtt or 0.0, link.link_id
