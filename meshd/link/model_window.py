"""A congestion window from a model of the path, not from its losses (pure: acknowledgements and `now` in).

What BBR is about (Cardwell et al., "BBR: Congestion-Based Congestion Control", ACM Queue 2016; RFC-to-be
draft-ietf-ccwg-bbr): the path is described by the most it has delivered lately and by the shortest round
trip seen, and the window is a little more than the product of both. A loss says nothing by itself: random
ones of half a percent hold a Reno or Cubic window at a tenth of what a path of 50 ms could carry.
"""

from collections import deque

MIN_WINDOW_SEGMENTS = 32
MAX_WINDOW_BYTES = 16 << 20  # what one link may have on its way


class ModelWindow:
    """`window` is in bytes, `pacing_rate` in bytes a second (0: not known yet), `now` in seconds."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.window = MIN_WINDOW_SEGMENTS * segment
        self.pacing_rate = 0.0
        self.min_rtt: float | None = None
        self._delivered = 0
        self._history: deque[tuple[float, int]] = deque()
        self._rates: deque[tuple[float, float]] = deque()
        self._full = False
        self._full_rate = 0.0
        self._full_rounds = 0
        self._round_end = 0.0

    def acked(self, now: float, size: int, rtt: float | None) -> None:
        """`size` bytes were acknowledged; `rtt` seconds if this shows a round trip."""
        self._delivered += size
        if rtt is not None and (self.min_rtt is None or rtt < self.min_rtt):
            self.min_rtt = rtt
        shortest = self.min_rtt or 0.1
        self._measure(now, max(shortest, 0.02), 10 * max(shortest, 0.05))
        rate = self._rates[0][1] if self._rates else 0.0
        if not self._full:
            self.window += size
            if rate:  # no more than twice what the path has delivered
                self.window = min(self.window, int(2 * rate * shortest + 0.006 * rate) + 64 * self.segment)
            if now >= self._round_end and rate:
                self._round_end = now + max(shortest, 0.02)
                if rate > self._full_rate * 1.25:
                    self._full_rate, self._full_rounds = rate, 0
                else:
                    self._full_rounds += 1
                    self._full = self._full_rounds >= 3
        if self._full:
            self.window = int(1.25 * rate * shortest + 0.006 * rate)
        self.window = min(max(self.window, MIN_WINDOW_SEGMENTS * self.segment), MAX_WINDOW_BYTES)

    def _measure(self, now: float, span: float, keep: float) -> None:
        """Delivery over the last `span` seconds; the highest of the last `keep` seconds comes first."""
        history, rates = self._history, self._rates
        history.append((now, self._delivered))
        while len(history) > 2 and history[1][0] <= now - span:
            history.popleft()
        passed = now - history[0][0]
        if passed >= span * 0.9:
            rate = (self._delivered - history[0][1]) / passed
            while rates and rates[-1][1] <= rate:
                rates.pop()
            rates.append((now, rate))
            while rates[0][0] < now - keep:
                rates.popleft()
