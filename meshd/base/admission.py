"""Limit work from outside: the kinds of limits, rates by key, reserved places, and a fair queue. Pure.

Work that is checked and then started in a separate task can come in any number before the first task runs:
the check has to reserve the place.
"""

from collections import Counter, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

MOST_KEYS = 512
MANY = 64  # before those that owe nothing are looked for
K = TypeVar("K", bound=Hashable)
Release = Callable[[], None]
T = TypeVar("T")
_ROUNDING = 1e-6  # of one unit: who waits as long as it takes is not refused for the last bit of a float
Of = Literal["peer", "issuer", "address", "service", "lease", "key", "node"]


class TokenBucket:
    """`rate` units a second, at most `burst` saved up; `now` is a clock in seconds that never goes back."""

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; returns how many seconds the caller has to pause (0: not at all)."""
        self._fill(now)
        self._level -= amount
        return -self._level / self._rate if self._level < 0 else 0.0

    def spend(self, amount: float, now: float) -> bool:
        """Take `amount` if available; otherwise take nothing and return False."""
        if not self.has(amount, now):
            return False
        self._level -= amount
        return True

    def has(self, amount: float, now: float) -> bool:
        """Return True if `spend` would succeed now; take nothing."""
        self._fill(now)
        return self._level + _ROUNDING >= amount

    def full(self, now: float) -> bool:
        """Return True if nothing is owed: the bucket can be dropped and recreated."""
        return self._level + (now - self._at) * self._rate >= self._burst

    def _fill(self, now: float) -> None:
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now


@dataclass(frozen=True, slots=True)
class Share:
    """At most `most` of `what` at once, for each `of`; `beyond` says what happens above that."""

    what: str
    most: int
    of: Of
    beyond: str


@dataclass(frozen=True, slots=True)
class Rate:
    """`per_second` of `what`, `burst` at once, for each `of`; `beyond` says what happens above that."""

    what: str
    per_second: float
    burst: float
    of: Of
    beyond: str

    def bucket(self, now: float) -> TokenBucket:
        """Return a full bucket."""
        return TokenBucket(rate=self.per_second, burst=self.burst, now=now)


class Rates:
    """A bounded number of keys. `now` is a clock in seconds that never goes back."""

    def __init__(self, rate: Rate, *, most: int = MOST_KEYS) -> None:
        self._rate = rate
        self._most = most
        self._buckets: dict[Hashable, TokenBucket] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def has(self, key: Hashable, now: float) -> bool:
        """Return True if `spend` would succeed now; spend and remember nothing."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.has(1.0, now)

    def spend(self, key: Hashable, now: float, amount: float = 1.0) -> bool:
        """Spend `amount` for `key` and return True if its rate allows that."""
        return self.of(key, now).spend(amount, now)

    def of(self, key: Hashable, now: float) -> TokenBucket:
        """Return the bucket of `key`. Evicts the key silent longest if there are too many."""
        self._buckets[key] = bucket = self._buckets.pop(key, None) or self._rate.bucket(now)
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return bucket


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


class FairQueue(Generic[T]):
    """Items in the order in which they came; a full queue drops the oldest item of the producer with most.

    A producer that may have many names is counted by a common group first: `put` takes several levels.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[tuple[tuple[Hashable, ...], T]] = deque()
        self._below: dict[tuple[Hashable, ...], Counter[Hashable]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, *who: Hashable) -> None:
        """Append `item`. `who` it is from: the widest group first, always as many levels."""
        self._items.append((who, item))
        for level, unit in enumerate(who):
            self._below.setdefault(who[:level], Counter())[unit] += 1
        if len(self._items) > self._most:
            most = self._largest()
            at = next(index for index, (value, _) in enumerate(self._items) if value == most)
            del self._items[at]
            self._less(most)

    def pop(self) -> T:
        """Return and remove the first item. Raises IndexError when there is none."""
        who, item = self._items.popleft()
        self._less(who)
        return item

    def _largest(self) -> tuple[Hashable, ...]:
        found: tuple[Hashable, ...] = ()
        while (counts := self._below.get(found)) is not None:
            found = (*found, max(counts, key=counts.__getitem__))
        return found

    def _less(self, who: tuple[Hashable, ...]) -> None:
        for level, name in enumerate(who):
            counts = self._below[who[:level]]
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
            if not counts:
                del self._below[who[:level]]
