"""Places for work from outside, reserved when it is admitted and not when it starts. Pure.

Work that is checked and then started in a separate task can come in any number before the first task runs:
the check has to reserve the place.
"""

from collections import Counter
from collections.abc import Callable, Hashable

from meshd.base.peer_limits import Share

Release = Callable[[], None]


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
