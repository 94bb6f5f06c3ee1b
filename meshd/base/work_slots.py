"""Places for work from outside, reserved when it is admitted and not when it begins. Pure.

Work that is checked and then started in a separate task can come in any number before the first task runs:
the check has to reserve the place.
"""

from collections import Counter
from collections.abc import Callable, Hashable

from meshd.base.peer_limits import Share

Release = Callable[[], None]


class Slots:
    """`share` for all together, `of_one` for each that comes, `of_issuer` for all that one issuer let in."""

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
        """A place for `who` until the returned function is called (once or more often); None: no place."""
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
        for counts, one in ((self._taken, who), (self._of_issuer, issuer)):
            counts[one] += by
            if not counts[one]:
                del counts[one]
