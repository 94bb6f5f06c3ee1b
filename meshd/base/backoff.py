"""Jittered exponential back-off, and the order in which peers are asked by earlier results. Pure.

The caller provides the random numbers. A fixed order would be predictable: silent peers at its beginning
would keep all others from being asked. So the order is random each time, and peers that failed come last, for
longer each time.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar


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


AGAIN = Backoff(first=30.0, most=1800.0)
MOST_ASKED = 1024  # that are remembered, of each kind
Who = TypeVar("Who", bound=Hashable)
What = TypeVar("What", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Asked(Generic[Who, What]):
    """`now` is a clock in seconds that never goes back; `rng` gives numbers in [0, 1)."""

    def __init__(self, rng: Callable[[], float]) -> None:
        self._rng = rng
        self._helped: dict[What, Who] = {}
        self._failed: dict[tuple[Who, What], tuple[float, int]] = {}  # until when, and how often by then

    def order(self, many: Iterable[Who], what: What, now: float) -> list[Who]:
        """Return the peers with the one that helped last first, then those without a recent failure, then the
        rest.
        """
        best = self._helped.get(what)

        def rank(who: Who) -> tuple[float, float]:
            until = self._failed.get((who, what), (now, 0))[0]
            return (-1.0 if who == best else max(0.0, until - now)), self._rng()

        return sorted(many, key=rank)

    def helped(self, who: Who, what: What) -> None:
        """Record that `who` did what it was asked for."""
        _put(self._helped, what, who)
        self._failed.pop((who, what), None)

    def failed(self, who: Who, what: What, now: float) -> None:
        """Record that `who` refused or did not reply; it comes last until its back-off ends."""
        if self._helped.get(what) == who:
            del self._helped[what]
        _, tries = self._failed.get((who, what), (0.0, 0))
        _put(self._failed, (who, what), (now + AGAIN.delay(tries, self._rng()), tries + 1))


def _put(kept: dict[Key, Value], key: Key, value: Value) -> None:
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MOST_ASKED:
        del kept[next(iter(kept))]
