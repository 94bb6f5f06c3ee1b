"""Applies a rate to each of many keys, such as peers: one token bucket per key. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from meshd.base.peer_limits import Rate
from meshd.base.token_bucket import TokenBucket

MOST_KEYS = 512
MANY = 64  # before those that owe nothing are looked for
K = TypeVar("K", bound=Hashable)


class Rates:
    """A bounded number of keys. `now` is a clock in seconds that never goes back."""

    def __init__(self, rate: Rate, *, most: int = MOST_KEYS) -> None:
        self._rate = rate
        self._most = most
        self._buckets: dict[Hashable, TokenBucket] = {}

    def has(self, key: Hashable, now: float) -> bool:
        """Return True if `spend` would succeed now; spend and remember nothing."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.has(1.0, now)

    def spend(self, key: Hashable, now: float, amount: float = 1.0) -> bool:
        """Spend `amount` for `key` and return True if its rate allows that. Evicts the key silent longest if
        there are too many.
        """
        bucket = self._buckets.pop(key, None)
        if bucket is None:
            bucket = self._rate.bucket(now)
            if len(self._buckets) >= self._most:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = bucket
        return bucket.spend(amount, now)


class TokenBuckets(Generic[K]):
    """A token bucket for each key. Unlike Rates, it forgets no key that owes: the caller bounds how many."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._of: dict[K, TokenBucket] = {}
        self._look_at = MANY

    def of(self, key: K, now: float) -> TokenBucket:
        """Return the bucket of `key`, kept for as long as it is not full."""
        if key not in self._of and len(self._of) >= self._look_at:
            self._of = {kept: bucket for kept, bucket in self._of.items() if not bucket.full(now)}
            self._look_at = max(MANY, 2 * len(self._of))
        return self._of.setdefault(key, self._rate.bucket(now))
