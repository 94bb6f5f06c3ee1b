"""Buckets of one rate for many keys, which are remembered while they owe something. Pure."""

from collections.abc import Hashable
from typing import Generic, TypeVar

from meshd.base.peer_limits import Rate
from meshd.base.token_bucket import TokenBucket

MANY = 64  # before those that owe nothing are looked for
K = TypeVar("K", bound=Hashable)


class Paces(Generic[K]):
    """Unlike Rates it forgets nobody who owes: the caller bounds how many can."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._of: dict[K, TokenBucket] = {}
        self._look_at = MANY

    def of(self, key: K, now: float) -> TokenBucket:
        """The same one for as long as it owes something."""
        if key not in self._of and len(self._of) >= self._look_at:
            self._of = {one: pace for one, pace in self._of.items() if not pace.full(now)}
            self._look_at = max(MANY, 2 * len(self._of))
        return self._of.setdefault(key, self._rate.bucket(now))
