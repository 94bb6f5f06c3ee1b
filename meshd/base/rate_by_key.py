"""Applies a rate to each of many keys: one bucket per key, and a bounded number of them. Pure."""

from collections.abc import Hashable

from meshd.base.peer_limits import Rate
from meshd.base.token_bucket import TokenBucket

MOST_KEYS = 512


class Rates:
    """`now` is a clock in seconds that never goes back."""

    def __init__(self, rate: Rate, *, most: int = MOST_KEYS) -> None:
        self._rate = rate
        self._most = most
        self._buckets: dict[Hashable, TokenBucket] = {}

    def has(self, key: Hashable, now: float) -> bool:
        """Would `spend` say yes? Nothing is taken, nor remembered."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.has(1.0, now)

    def spend(self, key: Hashable, now: float, amount: float = 1.0) -> bool:
        """True when `key` may have that much now. Of too many keys the one silent longest is forgotten."""
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            bucket = self._rate.bucket(now)
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = bucket
        return bucket.spend(amount, now)
