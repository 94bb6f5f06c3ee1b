"""Limits the data in flight on one link, so that control never waits behind data.

Sockets, proxies and relays buffer megabytes; a ping behind them waits seconds. So the sender measures what
the link delivers (from the peer's LinkAck frames) and keeps in flight no more than

    rate x shortest round trip  +  50 ms of the rate (16 to 256 KiB).

The estimate is that of BBR (draft-ietf-ccwg-bbr, delivery rate estimation): the highest rate of the last
10 s, never lowered by samples during which the application had nothing to send. Such a sample can be as short
as a round trip, and many a limiter lets a burst pass at once (token buckets): so it counts for no more than
1.25 times what the link carried over a quarter of a second, or, where nothing was sent for so long, than what
an earlier burst had in flight without a queue. Where 256 KiB are less than
4 ms of the rate, 4 ms are taken: an event loop is not finer than that, and control does not suffer.

All control frames are exempt: they count as in flight and are never held back.
"""

from collections import deque
from dataclasses import dataclass

FIRST_ALLOWANCE = 64 << 10  # bytes, until something has been measured
_MEMORY = 10.0  # seconds that a highest rate and a shortest round trip are believed
FLOOR_SECONDS = (
    600.0  # for which the shortest round trip of all counts for predictions, half of that at least
)
_QUEUE_TIME = 0.05
_QUEUE_LEAST = 16 << 10
_QUEUE_MOST = 256 << 10
_COARSE_TIME = 0.004
_LONG_TIME = 0.25  # seconds of a long sample, at least: a burst of a limiter must not fill it
_LONG_FACTOR = 1.25
_PAUSE = 0.01  # seconds with nothing in flight that end a long sample; an event loop makes shorter ones
_START_GAIN = 1.25  # with the queue's share, the rate still grows by 3/4 in each round trip of 100 ms
_START_GROWTH = 1.1
_PROBE_GAIN = 1.25  # in one round of eight, or a rate once measured too low would never rise again
_PROBE_EVERY = 8
_START_ROUNDS = 3  # rounds without growth that end the start
_SHOWN = 1 << 20  # bytes after which the rate of a start that still grows counts as what the link can do
_FRAME_TIME = 0.02  # a frame passes a slow link in less than this
FRAME_LEAST = 4 << 10
_FRAME_UNKNOWN = 16 << 10
_FRAME_MOST = 256 << 10
_MOST_MARKS = 256
_TELLING = 16 << 10  # bytes in flight whose late acknowledgement tells of a queue


@dataclass(slots=True)
class _Mark:
    """A snapshot of what was known when the bytes up to `end` were sent."""

    end: int
    sent_at: float
    acked: int
    acked_at: float
    first_sent_at: float  # when the newest byte acknowledged by then had been sent
    limited: bool  # the application had no more to send


class _Highest:
    """The highest rate of the last 10 s."""

    __slots__ = ("_rates",)

    def __init__(self) -> None:
        self._rates: deque[tuple[float, float]] = deque()  # (time, rate), rates falling

    @property
    def value(self) -> float | None:
        """The rate in bytes a second; None before the first sample."""
        return self._rates[0][1] if self._rates else None

    def add(self, rate: float, now: float, *, limited: bool) -> bool:
        """Take a sample in; one that the application limited counts only if it is the highest."""
        rates = self._rates
        if limited and rates and rate <= rates[0][1]:
            return False
        while rates and rates[-1][1] <= rate:
            rates.pop()
        rates.append((now, rate))
        while rates[0][0] < now - _MEMORY:
            rates.popleft()
        return True


class _Lowest:
    """The lowest value of the last minutes: of this half of FLOOR_SECONDS, and of the one before."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._before: float | None = None
        self._current: float | None = None

    @property
    def value(self) -> float | None:
        found = [rtt for rtt in (self._before, self._current) if rtt is not None]
        return min(found, default=None)

    def add(self, value: float, now: float) -> None:
        if now - self._began > FLOOR_SECONDS / 2:
            self._before, self._current, self._began = self._current, None, now
        if self._current is None or value < self._current:
            self._current = value


class Pacing:
    """One link's measurement. All times are loop time in seconds."""

    def __init__(self, now: float) -> None:
        self.sent = 0  # bytes, everything
        self.acked = 0
        self.rtt_min: float | None = None
        self.rtt_loaded: float | None = None  # smoothed, with the acknowledgement's delay
        self.rate: float | None = None  # bytes a second that the link delivers, as far as is known
        self.probing = False  # the shortest round trip is being measured anew
        self._rtt_min_at = now
        self._floor = _Lowest(now)
        self._acked_at = now
        self._first_sent_at = now
        self._marks: deque[_Mark] = deque()
        self._limited_until = 0
        self._ramp: float | None = None  # bytes: a drained path is not filled in one burst
        self._rates = _Highest()
        self._long_rates = _Highest()
        self._long_at = now  # when the long sample under way began, from which byte, and whether
        self._long_from = 0  # the application had nothing to send for a while of it
        self._long_limited = False
        self._burst_from = 0  # bytes sent before the link was idle for the last time
        self._shown = 0  # bytes in flight at once that came through without a queue
        self._measured = False  # by a sample that the application did not limit
        self._starting = True
        self._round_end = 0
        self._rounds = 1
        self._round_rate = 0.0
        self._rounds_flat = 0
        self._allowed: int | None = None  # `allowance`, until something changes it

    @property
    def rtt_floor(self) -> float | None:
        """The shortest round trip of the last minutes: what the path takes while both machines are idle."""
        return self._floor.value

    @property
    def full_rate(self) -> float | None:
        """The rate, once the link has shown what it can do; before, it only shows how much there
        was to send.
        """
        return self.rate if self._measured and (not self._starting or self.acked >= _SHOWN) else None

    @property
    def in_flight(self) -> int:
        """The bytes sent and not yet acknowledged on this link."""
        return self.sent - self.acked

    def allowance(self) -> int:
        """Return the bytes that may be in flight."""
        if self._allowed is None:
            self._allowed = self._allow()
        return self._allowed

    def _allow(self) -> int:
        rate = self.rate
        if rate is None:
            return FIRST_ALLOWANCE
        on_the_way = rate * (self.rtt_min or 0.0)
        if self.probing:
            return max(int(on_the_way / 2), FRAME_LEAST)
        target = on_the_way + _queue_share(rate)
        if self._rounds % _PROBE_EVERY == 0:  # on a short path the queue's share is room enough to find more
            target = max(target, on_the_way * _PROBE_GAIN)
        if self._starting:
            target += on_the_way * (_START_GAIN - 1.0)
        if self._ramp is not None:
            if self._ramp >= target:
                self._ramp = None
            else:
                target = self._ramp
        if self._long_rates.value is None:
            # nothing but short samples yet: no more than what came through shows to be true
            target = min(target, max(FIRST_ALLOWANCE + self.acked - self._burst_from, self._shown))
        return int(target) if self._measured else max(int(target), FIRST_ALLOWANCE)

    def frame_size(self) -> int:
        """Return the payload of a frame that delays nothing for long, in bytes."""
        rate = self.rate
        if rate is None or not self._measured:
            return _FRAME_UNKNOWN
        return int(min(max(rate * _FRAME_TIME, FRAME_LEAST), _FRAME_MOST))

    def on_sent(self, count: int, now: float, *, starved: bool) -> None:
        """Record `count` bytes handed to the link; `starved`: there was room for more, and nothing to send.

        Bytes in flight after that say nothing about the link's rate.
        """
        if self.sent == self.acked:  # idle until now: the time before says nothing about the link
            if now > self._acked_at + _PAUSE:
                self._begin_long(now)
                self._burst_from = self.acked
                self._allowed = None
            self._acked_at = self._first_sent_at = now
        self.sent += count
        limited = starved or self.acked < self._limited_until
        if starved:
            self._limited_until = self.sent
            self._long_limited = True
        marks = self._marks
        if len(marks) >= _MOST_MARKS:
            marks[-1].end = self.sent
        else:
            marks.append(_Mark(self.sent, now, self.acked, self._acked_at, self._first_sent_at, limited))

    def on_acked(self, total: int, now: float) -> None:
        """Record that the peer has received `total` bytes on this link. Lies only slow their sender."""
        if not self.acked < total <= self.sent:
            return
        self._allowed = None
        if self._ramp is not None:
            self._ramp += total - self.acked
        self.acked = total
        self._acked_at = now
        mark = None
        while self._marks and self._marks[0].end <= total:
            mark = self._marks.popleft()
        self._on_long(now)
        if mark is None:
            return
        self._first_sent_at = mark.sent_at
        rtt = now - mark.sent_at
        flew = mark.end - mark.acked
        if self.rtt_min is None or rtt <= self.rtt_min + _QUEUE_TIME:
            self._shown = max(self._shown, flew)
        elif flew >= _TELLING:  # less may have been acknowledged with the answer to it, when that was ready
            self._starting = False  # what we add only makes the queue longer
            self._shown = min(self._shown, flew) // 2  # another path, or a limiter that lets a burst pass
        self._on_round_trip(rtt, now)
        elapsed = max(now - mark.acked_at, mark.sent_at - mark.first_sent_at)
        if elapsed > 0:
            self._on_rate((total - mark.acked) / elapsed, mark.limited, now)
        if total >= self._round_end:
            self._on_round(mark.limited)

    def refill(self) -> None:
        """Ramp up again instead of sending a burst: the path ran empty because the peer asked us to hold."""
        if self.rate is not None:
            self._allowed = None
            self._ramp = self.in_flight + _queue_share(self.rate)

    def _on_long(self, now: float) -> None:
        elapsed = now - self._long_at
        if elapsed >= max(_LONG_TIME, self.rtt_min or 0.0):
            # a link that carries small messages for minutes has not shown that it is slow
            if not self._long_limited or self._long_rates.value is not None:
                rate = (self.acked - self._long_from) / elapsed
                self._long_rates.add(rate, now, limited=self._long_limited)
                self._set_rate()
            self._begin_long(now)

    def _set_rate(self) -> None:
        short, long = self._rates.value, self._long_rates.value
        self.rate = short if short is None or long is None else min(short, long * _LONG_FACTOR)

    def _begin_long(self, now: float) -> None:
        self._long_at = now
        self._long_from = self.acked
        self._long_limited = self.acked < self._limited_until

    def on_pong(self, rtt: float, now: float, *, probe: bool) -> None:
        """Record a round trip; `probe` if the ping was sent to end `probing`."""
        self._allowed = None
        if probe and self.probing:
            self.probing = False
            self._ramp = None if self.rate is None else _queue_share(self.rate)
            self.rtt_min = rtt
            self._rtt_min_at = now
        self._shorten(rtt, now)

    def _on_round_trip(self, rtt: float, now: float) -> None:
        loaded = self.rtt_loaded
        self.rtt_loaded = rtt if loaded is None else loaded + (rtt - loaded) / 8
        self._shorten(rtt, now)

    def _shorten(self, rtt: float, now: float) -> None:
        self._floor.add(rtt, now)
        if self.rtt_min is None or rtt <= self.rtt_min:
            self.rtt_min = rtt
            self._rtt_min_at = now
        elif now - self._rtt_min_at > _MEMORY:
            # Every round trip under load contains our own queue: believing them would let it grow for ever.
            self.probing = True
            self._rtt_min_at = now

    def _on_rate(self, rate: float, limited: bool, now: float) -> None:
        if self._rates.add(rate, now, limited=limited):
            self._set_rate()
            self._measured = self._measured or not limited

    def _on_round(self, limited: bool) -> None:
        self._round_end = self.sent
        self._rounds += 1
        rate = self._rates.value or 0.0
        if rate >= self._round_rate * _START_GROWTH:
            self._round_rate = rate
            self._rounds_flat = 0
        elif not limited:
            self._rounds_flat += 1
            self._starting = self._starting and self._rounds_flat < _START_ROUNDS


def _queue_share(rate: float) -> float:
    """Return the bytes that may queue in front of the bottleneck."""
    return max(min(max(rate * _QUEUE_TIME, _QUEUE_LEAST), _QUEUE_MOST), rate * _COARSE_TIME)
