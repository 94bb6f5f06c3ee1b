"""Admit work from outside: rates by key, and slots that are reserved when work is admitted. Pure.

Work that is checked and then started in a separate task can come in any number before the first task runs:
the check has to reserve the place.
"""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from meshd.base.peer_limits import Rate, Share
from meshd.base.token_bucket import TokenBucket

MOST_KEYS = 512
MANY = 64  # before those that owe nothing are looked for
K = TypeVar("K", bound=Hashable)
Release = Callable[[], None]


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


class Slots:
    """`share` bounds all together, `of_one` each caller, `of_issuer` all members that one issuer admitted."""

    def __init__(self, share: Share, of_one: Share | None = None, of_issuer: Share | None = None) -> None:
        self._most = share.most
        self._most_of_one = share.most if of_one is None else of_one.most
        self._most_of_issuer = share.most if of_issuer is None else of_issuer.most
        self._taken: Counter[Hashable] = Counter()
        self._of_issuer: Counter[Hashable] = Counter()
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def take(self, who: Hashable, issuer: Hashable = None) -> Release | None:
        """Reserve a slot for `who` until the returned function is called (repeated calls do nothing); None:
        no slot.
        """
        if self._total >= self._most or self._taken.get(who, 0) >= self._most_of_one:
            return None
        if self._of_issuer.get(issuer, 0) >= self._most_of_issuer:
            return None
        self._count(who, issuer, 1)
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self._count(who, issuer, -1)

        return release

    def _count(self, who: Hashable, issuer: Hashable, by: int) -> None:
        self._total += by
        for counts, owner in ((self._taken, who), (self._of_issuer, issuer)):
            counts[owner] += by
            if not counts[owner]:
                del counts[owner]
