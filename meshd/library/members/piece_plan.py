"""Decide which piece of a model is fetched from which holder. Pure.

Pieces are handed out in order, each to one holder, so that several holders share the work at their own
speeds. When none is left, an idle holder gets a piece that another one still owes: the first to arrive
counts, so a stalled holder delays nobody. At first two may owe the same piece, so that duplicates cost
little, and one more each time that nobody has given it for a while: so stalled holders delay a pull, but
cannot end it. A holder that gives a wrong piece is not asked again, and its owed pieces go to the others.
"""

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable

from meshd.model.weights_index import Piece, PieceIndex

_COPIES = 2  # holders that may owe the same piece at first
COPY_SECONDS = 20.0  # after which one more may: a piece takes that long at 200 kB/s


class PiecePlan:
    """The plan for one content; holders are any hashable ids."""

    def __init__(
        self, index: PieceIndex, present: Iterable[int] = (), *, wanted: Collection[int] | None = None
    ) -> None:
        """Start with the pieces that are there. `wanted`: only these are fetched and counted; None: all."""
        self._index = index
        self._present = set(present)
        done = self._present if wanted is None else self._present.intersection(wanted)
        self.done_bytes = sum(index.piece(number).length for number in done)
        numbers = range(index.count) if wanted is None else wanted
        self.wanted_bytes = sum(index.piece(number).length for number in numbers)
        if wanted is not None:
            self._present |= set(range(index.count)).difference(wanted)
        self._missing = deque(number for number in range(index.count) if number not in self._present)
        # In the order of requests: the time of each request, infinity before it.
        self._owed: dict[int, dict[Hashable, float]] = {}
        self._liars: set[Hashable] = set()

    @property
    def is_done(self) -> bool:
        return len(self._present) == self._index.count

    @property
    def liars(self) -> frozenset[Hashable]:
        """The holders that gave a wrong piece."""
        return frozenset(self._liars)

    def next(self, holder: Hashable, now: float) -> Piece | None:
        """Return the piece to request from this holder, followed by `asked`; None: nothing for now."""
        if holder in self._liars:
            return None
        if self._missing:
            number = self._missing.popleft()
        else:
            late = (
                number
                for number, holders in self._owed.items()
                if holder not in holders
                and (len(holders) < _COPIES or now - max(holders.values()) >= COPY_SECONDS)
            )
            if (number := next(late, -1)) < 0:
                return None
        self._owed.setdefault(number, {})[holder] = math.inf
        return self._index.piece(number)

    def asked(self, holder: Hashable, number: int, now: float) -> None:
        """Note that the holder is asked now, which may be after a pause for the user's rate limit."""
        if holder in (holders := self._owed.get(number, {})):
            holders[holder] = now

    def arrived(self, holder: Hashable, number: int, data: bytes) -> bool:
        """Say whether the holder gave what it owed; if not, it is never asked again. See `wants`."""
        if self._index.holds(number, data):
            return True
        self._liars.add(holder)
        self.lost(holder)
        return False

    def wants(self, number: int) -> bool:
        """Say whether a received piece must still be written: another holder may have been faster."""
        return number not in self._present and number in self._owed

    def written(self, number: int) -> None:
        """Note that the piece is on the disk."""
        self._owed.pop(number, None)
        if number not in self._present:
            self._present.add(number)
            self.done_bytes += self._index.piece(number).length

    def lost(self, holder: Hashable) -> None:
        """Hand out a lost holder's pieces again, before all others."""
        for number in [number for number, holders in self._owed.items() if holder in holders]:
            del self._owed[number][holder]
            if not self._owed[number]:
                del self._owed[number]
                self._missing.appendleft(number)
