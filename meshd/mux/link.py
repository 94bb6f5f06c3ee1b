"""The links of a session: the state of each (parser, counters, pings, liveness), and which one carries data.

A link is alive while something comes in *and* the peer shows by its Pongs that it hears us: a path may die
in one direction only.
"""

from meshd.base.errors import LocalProtocolError
from meshd.mux.config import MuxConfig, Side
from meshd.mux.pacing import Pacing
from meshd.wire.frame import FrameParser

_ACK_BYTES = 16 << 10  # received since the last LinkAck that make one worth while, if _ACK_PAUSE has passed
_ACK_PAUSE = 0.001
_ACK_AT_ONCE = 256 << 10
ACK_LEAST = 8 << 10  # below it, it waits for company: an answer, say, to the request that it acknowledges
_ACK_CRUMB_DELAY = 0.05  # seconds since the last one until less than ACK_LEAST goes, in company
_ACK_DELAY = 0.02  # seconds until ACK_LEAST or more are acknowledged anyway
_MOST_PINGS = 64  # unanswered ones remembered, and unanswered ones of the peer's
_HOLD = 1.0  # seconds at most that the peer's measurement stops our data
_LATE = 1.0  # seconds by which our own timer may be late before we doubt ourselves and not the link


class LinkState:
    """One link under a session. Times are loop time."""

    def __init__(self, link_id: int, now: float, config: MuxConfig) -> None:
        self.link_id = link_id
        self.parser = FrameParser()
        self.pacing = Pacing(now)
        self.received = 0
        self.last_heard = now
        self.confirmed_at = now  # when the peer last showed that it hears us
        self.rtt: float | None = None  # smoothed, from pings
        self.resume_due = True
        self.switch_due: int | None = None
        self.lost_due: int | None = None
        self.goodbye_due = False
        self.awaits_resume = False  # data waits until the peer has said what it has
        self.pings_due: list[int] = []
        self.pongs_due: list[int] = []
        self._pinged: dict[int, float] = {}  # number -> when it was sent
        self._asked: set[int] = set()  # numbers that the application asked for
        self._held: int | None = None  # the ping that asked the peer to hold its data
        self._drained = False  # its pong came, behind all data that was under way
        self._probe: int | None = None  # the ping that then measures
        self.hold_until = 0.0  # the peer measures: we send no data
        self._interval = config.ping_interval
        self._dead_after = config.dead_after
        self._next_ping = now
        self.acked = 0  # bytes received as last told to the peer
        self._acked_at = now
        self._unacked_since: float | None = None
        self._ack_ripe = False  # its time has come; kept apart, so that a clogged link keeps no timer running

    # receiving

    def heard(self, count: int, now: float) -> float | None:
        """Count `count` bytes received; return when to acknowledge them, if that time is new or sooner, else
        None.
        """
        before = self.received - self.acked
        self.received += count
        self.last_heard = now
        if self._ack_ripe or before + count < ACK_LEAST:
            return None
        if self._unacked_since is None:
            self._unacked_since = now
        elif not before < _ACK_BYTES <= before + count:
            return None
        return self._ripe_at(self._unacked_since)

    def on_link_ack(self, total: int, now: float) -> None:
        """Handle the acknowledgement of `total` bytes of ours. Being old, it does not prove that the peer
        hears us now.
        """
        self.pacing.on_acked(total, now)

    def on_pong(self, number: int, now: float) -> float | None:
        """Handle a pong; return its round trip in seconds if the application had asked for the ping."""
        sent_at = self._pinged.pop(number, None)
        if sent_at is None:
            return None
        self.confirmed_at = now
        rtt = now - sent_at
        self.rtt = rtt if self.rtt is None else self.rtt + (rtt - self.rtt) / 4
        self.pacing.on_pong(rtt, now, probe=number == self._probe)
        if number == self._held:
            self._drained = True
        elif number == self._probe:
            self._held = self._probe = None
            self._drained = False
        if number not in self._asked:
            return None
        self._asked.discard(number)
        return rtt

    def on_ping(self, number: int, hold: bool, now: float) -> None:
        """Handle a ping: queue the pong, and hold data for a moment if the peer asks for that."""
        if self.hold_until and not hold:
            self.pacing.refill()
        self.hold_until = now + _HOLD if hold else 0.0
        self.pongs_due.append(number)
        del self.pongs_due[:-_MOST_PINGS]

    # sending

    def control_due(self) -> bool:
        """Return True if the link itself may have a control frame to send. Called with every message."""
        return bool(
            self.pongs_due
            or self.pings_due
            or self.resume_due
            or self.goodbye_due
            or self.pacing.probing
            or self.switch_due is not None
            or self.lost_due is not None
        )

    def ask(self, number: int) -> None:
        """Queue a ping for the application."""
        self.pings_due.append(number)
        self._asked.add(number)
        if len(self.pings_due) > _MOST_PINGS:
            self._asked.discard(self.pings_due.pop(0))

    def ping_sent(self, number: int, now: float) -> None:
        """Record that a ping leaves."""
        self._pinged[number] = now
        if len(self._pinged) > _MOST_PINGS:
            oldest = next(iter(self._pinged))
            del self._pinged[oldest]
            self._asked.discard(oldest)

    def probe_due(self) -> bool:
        """Return True if measuring the shortest round trip needs a ping now.

        It takes two: the first asks the peer to hold its data, and its pong comes behind what had been under
        way, so that the second meets no queue in either direction.
        """
        pacing = self.pacing
        if not pacing.probing or self._probe is not None:
            return False
        return self._held is None or (self._drained and pacing.in_flight <= pacing.allowance())

    def probe(self, number: int) -> None:
        """Queue the ping that `probe_due` wants."""
        if self._held is None:
            self._held = number
        else:
            self._probe = number
        self.pings_due.append(number)

    def holds(self, number: int) -> bool:
        """Return True if this ping asks the peer to hold its data."""
        return self.pacing.probing and number != self._probe

    def ack_due(self, now: float) -> bool:
        """Return True if a LinkAck is worth a frame of its own."""
        pending = self.received - self.acked
        if pending < ACK_LEAST:
            return False
        if pending >= _ACK_AT_ONCE or (pending >= _ACK_BYTES and now - self._acked_at >= _ACK_PAUSE):
            return True
        self.ripen(now)
        return self._ack_ripe

    def ack(self, now: float) -> int | None:
        """Return the total to acknowledge with other frames, or None; small amounts not each time.

        Without it a request and its reply cost a third less.
        """
        pending = self.received - self.acked
        if not pending or (pending < ACK_LEAST and now - self._acked_at < _ACK_CRUMB_DELAY):
            return None
        self.acked = self.received
        self._acked_at = now
        self._unacked_since = None
        self._ack_ripe = False
        return self.received

    # time

    def next_timeout(self) -> float:
        """Return when this link next needs `ripen` or a check of its liveness."""
        at = min(self._next_ping, self.last_heard + self._dead_after, self.confirmed_at + self._dead_after)
        if self._unacked_since is not None:
            at = min(at, self._ripe_at(self._unacked_since))
        return min(at, self.hold_until) if self.hold_until else at

    def ripen(self, now: float) -> None:
        """Apply what is due: a LinkAck becomes due, a hold ends."""
        if self._unacked_since is not None and now >= self._ripe_at(self._unacked_since):
            self._unacked_since = None
            self._ack_ripe = True
        if self.hold_until and now >= self.hold_until:
            self.hold_until = 0.0
            self.pacing.refill()

    def _ripe_at(self, since: float) -> float:
        """Return when to acknowledge. A burst that fills the flight limit stands still until it is
        acknowledged.
        """
        if self.received - self.acked >= _ACK_BYTES:
            return self._acked_at + _ACK_PAUSE
        return since + _ACK_DELAY

    def ping_due(self, now: float) -> bool:
        """Return True if it is time for a ping, once for each interval."""
        if now < self._next_ping:
            return False
        self._next_ping = now + self._interval
        return not self.pings_due

    def dead(self, now: float) -> str:
        """Return why the link is dead; empty if it is not."""
        # the very sum of next_timeout: a difference may round to "not yet" at that time, again and again
        due = min(self.last_heard, self.confirmed_at) + self._dead_after
        if now < due:
            return ""
        if due < now - _LATE:
            # Nobody asked for more than a second after it was due: this process slept, not the link.
            recently = now - self._dead_after + self._interval
            self.last_heard = max(self.last_heard, recently)
            self.confirmed_at = max(self.confirmed_at, recently)
            return ""
        if now >= self.last_heard + self._dead_after:
            return f"nothing heard for {now - self.last_heard:.1f} s"
        return f"the peer has not heard us for {now - self.confirmed_at:.1f} s"


class LinkTable:
    """A session's links by number. For the effect of a lost or changed link on streams, see state.py."""

    def __init__(self, side: Side, config: MuxConfig) -> None:
        self._leads = side == "leader"
        self._config = config
        self._linked_before = False
        self._next_ping = 1
        self.by_id: dict[int, LinkState] = {}
        self.data_link: int | None = None
        self.sequence = 0  # of the last Switch
        self.switches = 0
        self.grace_at: float | None = None  # the end of a session without links

    def rtt(self) -> float | None:
        """Return the round trip of the data link under load in seconds, if known."""
        link = self.by_id.get(self.data_link) if self.data_link is not None else None
        return None if link is None else (link.pacing.rtt_loaded or link.rtt)

    def best(self) -> int:
        """Return the best attached link; links known to be quick come first."""
        return min(self.by_id.values(), key=_order).link_id

    def new_ping(self) -> int:
        """Return a number for the next ping."""
        self._next_ping = self._next_ping % 0xFFFFFFFF + 1
        return self._next_ping

    def add(self, link_id: int, now: float) -> None:
        """Attach a link on which both Hellos have passed. Any but the first waits for the peer's Resume."""
        if link_id in self.by_id:
            raise LocalProtocolError(f"link {link_id} is attached already")
        self.grace_at = None
        link = LinkState(link_id, now, self._config)
        link.awaits_resume = self._linked_before
        self._linked_before = True
        self.by_id[link_id] = link

    def remove(self, link_id: int, now: float) -> bool:
        """Remove a lost link; True when it carried the data."""
        if self.by_id.pop(link_id, None) is None:
            return False
        if not self.by_id:
            self.grace_at = now + self._config.grace
        if link_id != self.data_link:
            return False
        self.data_link = None
        return True

    def carry_on(self, link_id: int) -> None:
        """Let this link carry data from now on; it begins with a Resume."""
        self.data_link = link_id
        self.switches += 1
        self.by_id[link_id].resume_due = True

    def lead_to(self, link_id: int) -> None:
        """Tell the peer, as the leader, to use this link."""
        if not self._leads:
            raise LocalProtocolError("only the leader says which link carries data")
        self.sequence += 1
        self.by_id[link_id].switch_due = self.sequence

    def follow(self, sequence: int) -> bool:
        """Accept the leader's choice; False: a newer one is known already."""
        if sequence <= self.sequence:
            return False
        self.sequence = sequence
        return True

    def say_lost(self) -> None:
        """Tell the leader, on every link, that the one that carried data is lost."""
        for link in self.by_id.values():
            link.lost_due = self.sequence

    def say_goodbye(self) -> None:
        """Queue a goodbye on every link."""
        for link in self.by_id.values():
            link.goodbye_due = True

    def end(self) -> None:
        """End the session; links may still carry its goodbye."""
        self.data_link = None
        self.grace_at = None


def _order(link: LinkState) -> tuple[bool, float, int]:
    return link.rtt is None, link.rtt or 0.0, link.link_id
