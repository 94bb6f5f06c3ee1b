"""At most so many a second, for each of a bounded number of senders: pure."""

from collections.abc import Hashable
from dataclasses import dataclass

MOST_SENDERS = 512


@dataclass(slots=True)
class _Bucket:
    left: float
    at: float


class Rates:
    """`burst` at once, then `rate` a second, for each sender."""

    def __init__(self, *, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: dict[Hashable, _Bucket] = {}

    def take(self, sender: Hashable, now: float) -> bool:
        """True when one more is allowed now; `now` in loop seconds."""
        bucket = self._buckets.pop(sender, None)
        if bucket is None:
            bucket = _Bucket(self._burst, now)
            if len(self._buckets) >= MOST_SENDERS:
                del self._buckets[next(iter(self._buckets))]  # the one silent longest: it is full again
        bucket.left = min(self._burst, bucket.left + (now - bucket.at) * self._rate)
        bucket.at = now
        self._buckets[sender] = bucket
        if bucket.left < 1.0:
            return False
        bucket.left -= 1.0
        return True
