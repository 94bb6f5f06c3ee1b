"""A congestion window from a model of the path, not from its losses. Pure.

What BBR is about (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016; its
second version: draft-ietf-ccwg-bbr): a path is described by the most it has delivered lately and by the
shortest round trip seen, and the bytes in flight are held slightly above their product. A loss by itself
says nothing: half a percent of random ones holds a Reno or Cubic window at a tenth of what 50 ms could carry.

Where it departs from BBR: every few round trips the bytes in flight fall below the product, so that a
queue of our own making empties. If the round trip stays long even then, somebody else fills the queue, and
the model would starve (or, made stronger, starve the other): beside others the window goes up by some
segments in each round trip, and down where packets are lost, at most every other second, until the queue is
seen empty. The numbers were found beside Cubic and BBR of Linux at 20, 50 and 100 ms: each side keeps at
least a quarter.
"""

from collections import deque

MIN_WINDOW_SEGMENTS = 4
FIRST_WINDOW_SEGMENTS = 48
IDLE_WINDOW_SEGMENTS = 32  # less is not worth while: the rest waits for an acknowledgement
MAX_WINDOW_BYTES = 16 << 20  # what one link may have on its way
SPAN_SECONDS = 0.02  # rates are measured over a round trip, and over this at least
SLACK_SECONDS = 0.006  # acknowledgements and timers come in lumps of some milliseconds
NOISE_GAIN = 4.0  # times the mean difference of two round trips in a row: what a busy machine adds
MOST_NOISE_SECONDS = 0.1
JITTER_GAIN = 0.05
CYCLE = (1.25, 0.8, 1.0, 1.0, 1.0, 1.0, 1.0)  # times the product, for one round each
CRUISE_MORE = 0.05  # than the product, in the rounds of 1.0
STARTUP_GAIN = 2.0
STARTUP_LOSS = 0.02  # of a round: the path is full
STANDING_SECONDS = 0.005  # a queue is somebody else's when it is this long and a fifth of the round trip
OTHERS_SECONDS = 0.005  # … or when packets are lost and it is this much longer than ours
UP_A_SECOND = 60.0  # segments, beside others: by time and not by round trips, as Cubic goes
MOST_UP_SEGMENTS = 5.4  # in a round trip
DOWN = 0.85
CUT_SECONDS = 2.0  # between two reductions; BBR takes no loss for a sign, and would starve us
KEEP_RTT_SECONDS = 10.0  # a shortest round trip that was not seen again for so long is looked for
_LOOK_SECONDS = 0.2
UNPACED_RTT_SECONDS = 0.002  # within a LAN pacing costs more than it brings


class ModelWindow:
    """`window` in bytes, `pacing_rate` in bytes a second (0: as fast as the window allows), seconds."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.window = FIRST_WINDOW_SEGMENTS * segment
        self.pacing_rate = 0.0
        self.min_rtt: float | None = None
        self.rate = 0.0  # the most delivered lately, bytes a second
        self.phase = "startup"  # startup, drain, cruise, look
        self.beside_others = False
        self._min_seen = 0.0
        self._last_rtt = 0.1
        self._delivered = 0
        self._history: deque[tuple[float, int]] = deque()
        self._rates: deque[tuple[float, float]] = deque()  # falling; at busy time
        self._busy = 0.0  # time in which there was something to send
        self._acked_at: float | None = None
        self._full_rate = 0.0
        self._full_rounds = 0
        self._long_rounds = 0  # with a queue, in a row
        self._round_end = 0.0
        self._round_delivered = self._round_lost = 0
        self._step = 0
        self._step_min = 0.0  # the shortest round trip since the window was let go
        self._noise = 0.0  # by how much round trips differ while there is no queue of ours
        self._round_min = self._before_min = 0.0  # shortest round trips of this round and the one before
        self._look_end = 0.0
        self._fair = 0.0
        self._cut_at = 0.0

    def acked(self, now: float, size: int, rtt: float | None, *, starved: bool = False) -> None:
        """Record that `size` bytes were acknowledged, `rtt` seconds after they were sent (None: unknown).

        `starved`: nothing waits to be sent, so the delivery rate says little of the path.
        """
        if self._acked_at is not None and not starved:
            self._busy += min(now - self._acked_at, 0.2)
        self._acked_at = now
        self._delivered += size
        self._round_delivered += size
        if rtt is not None:
            self._see(now, rtt)
        self._measure(now, starved)
        if now >= self._round_end:
            self._before_min, self._round_min = self._round_min, rtt or self._last_rtt
            self._turn(now, starved)
            self._round_end = now + max(self._last_rtt, SPAN_SECONDS)
            self._round_delivered = self._round_lost = 0
        if self.phase == "startup":
            self.window += size
        if self.beside_others:
            up = min(UP_A_SECOND * self._last_rtt, MOST_UP_SEGMENTS)
            self._fair += up * self.segment * size / max(self._fair, self.segment)
        self._resize()

    def lost(self, now: float, size: int, sent_at: float) -> None:
        """Record that `size` bytes, sent at `sent_at`, are taken for lost."""
        self._round_lost += size
        if self.phase == "startup" and self._round_lost > max(
            STARTUP_LOSS * (self._round_delivered + self._round_lost), 8 * self.segment
        ):
            self._drain()
        if self.phase != "cruise" or now < self._cut_at + CUT_SECONDS:
            return
        if min(self._round_min, self._before_min) > self._others_rtt():
            self._join_others()
            self._cut_at = now
            self._fair *= DOWN
            self._resize()

    def silenced(self) -> None:
        """Start over carefully, after nothing came through for long."""
        self.window = MIN_WINDOW_SEGMENTS * self.segment
        self.phase, self.beside_others = "startup", False
        self._rates.clear()
        self._history.clear()
        self.rate = self._full_rate = self.pacing_rate = 0.0
        self._full_rounds = 0

    # --- inside

    def _see(self, now: float, rtt: float) -> None:
        self._noise += JITTER_GAIN * (min(abs(rtt - self._last_rtt), MOST_NOISE_SECONDS) - self._noise)
        self._last_rtt = rtt
        self._round_min = min(self._round_min, rtt)
        self._step_min = min(self._step_min or rtt, rtt)
        if self.min_rtt is None or rtt <= self.min_rtt:
            self.min_rtt, self._min_seen = rtt, now
        elif rtt <= 1.05 * self.min_rtt + 0.001:
            self._min_seen = now

    def _measure(self, now: float, starved: bool) -> None:
        """Measure the delivery rate over a round trip, and keep the maximum of the last ten that had work."""
        span = max(self.min_rtt or 0.1, SPAN_SECONDS)
        history, rates = self._history, self._rates
        history.append((now, self._delivered))
        while len(history) > 2 and history[1][0] <= now - span:
            history.popleft()
        passed = now - history[0][0]
        if passed < 0.9 * span:
            return
        rate = (self._delivered - history[0][1]) / passed
        if starved and rates and rate < rates[0][1]:
            return  # as much as there was, not as much as the path could
        while rates and rates[-1][1] <= rate:
            rates.pop()
        rates.append((self._busy, rate))
        while rates[0][0] < self._busy - 10 * max(self.min_rtt or 0.1, 0.05):
            rates.popleft()
        self.rate = rates[0][1]

    def _turn(self, now: float, starved: bool) -> None:
        """Change the phase as needed, after each round trip."""
        if not self.rate or self.min_rtt is None:
            return
        if self.phase == "startup":
            self._long_rounds = self._long_rounds + 1 if self._step_min > self._long_rtt() else 0
            if self._long_rounds >= 2:
                self._drain()
            elif not starved:
                if self.rate > 1.25 * self._full_rate:
                    self._full_rate, self._full_rounds = self.rate, 0
                else:
                    self._full_rounds += 1
                if self._full_rounds >= 3:
                    self._drain()
            self._step_min = 0.0
        elif self.phase == "drain":
            self._full_rounds += 1
            if self._last_rtt <= self._long_rtt() or self._full_rounds > 4:
                self.phase, self._step, self._step_min = "cruise", 2, self._last_rtt
        elif self.phase == "look":
            if now >= self._look_end:
                self.min_rtt, self._min_seen = self._step_min, now
                self.phase, self._step = "cruise", 2
        else:
            self._next_step(now)

    def _next_step(self, now: float) -> None:
        if self._step == 2:
            if self._step_min > self._long_rtt():
                self._join_others()
            else:
                self.beside_others = False
        if now - self._min_seen > KEEP_RTT_SECONDS:
            self.phase, self._look_end, self._step_min = (
                "look",
                now + max(_LOOK_SECONDS, 2 * self._last_rtt),
                0.0,
            )
            return
        self._step = (self._step + 1) % len(CYCLE)
        if self._step == 1:
            self._step_min = 0.0

    def _drain(self) -> None:
        """Drain the queue: the path is full, and what was delivered lately is what it can carry."""
        self.phase, self._full_rounds = "drain", 0

    def _join_others(self) -> None:
        if not self.beside_others:
            self.beside_others = True
            self._fair = max(float(self.window), self.rate * self._step_min)

    def _others_rtt(self) -> float:
        """Return the round trip above which others must be queueing: more than our own window explains."""
        return (
            (1 + CRUISE_MORE) * (self.min_rtt or 0.0)
            + SLACK_SECONDS
            + NOISE_GAIN * self._noise
            + OTHERS_SECONDS
        )

    def _long_rtt(self) -> float:
        """Return the round trip above which more is queued than we leave when we drain."""
        shortest = self.min_rtt or 0.0
        return shortest + max(STANDING_SECONDS, 0.2 * shortest)

    def _resize(self) -> None:
        shortest, rate = self.min_rtt or 0.0, self.rate
        product = rate * shortest
        least = IDLE_WINDOW_SEGMENTS * self.segment
        pace = 0.0
        if self.phase == "startup":
            if rate:  # no more than twice what the path has delivered
                self.window = min(self.window, int(2 * product + SLACK_SECONDS * rate) + 64 * self.segment)
            pace = max(STARTUP_GAIN * rate, self.window / max(shortest, 0.001))
        elif self.phase == "look":
            self.window, least = int(0.5 * product), MIN_WINDOW_SEGMENTS * self.segment
            pace = rate
        elif self.beside_others:
            self.window = int(self._fair if self._step != 1 else min(self._fair, CYCLE[1] * product))
            pace = 1.25 * self._fair / max(self._last_rtt, shortest, 0.001)
        elif self.phase == "drain":
            self.window = int(product)
            pace = rate
        else:
            gain = CYCLE[self._step]
            slack = (SLACK_SECONDS + NOISE_GAIN * self._noise) * rate if gain >= 1.0 else 0.0
            self.window = int((gain + CRUISE_MORE * (gain == 1.0)) * product + slack)
            pace = 1.25 * rate
        self.window = min(max(self.window, least), MAX_WINDOW_BYTES)
        self._fair = min(max(self._fair, least), MAX_WINDOW_BYTES)
        self.pacing_rate = max(pace, least / shortest) if shortest > UNPACED_RTT_SECONDS else 0.0
