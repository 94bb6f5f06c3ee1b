"""Jittered exponential back-off; the caller provides the random number. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """`first`, `factor` and `most` in seconds; `jitter` is the share chance may take away."""

    first: float = 0.25
    factor: float = 2.0
    most: float = 30.0
    jitter: float = 0.3

    def delay(self, attempt: int, draw: float) -> float:
        """Return the seconds to wait before try `attempt` (0 is the first retry); `draw` lies in [0, 1)."""
        plain = min(self.most, self.first * self.factor ** min(attempt, 32))
        return plain * (1.0 - self.jitter * draw)
