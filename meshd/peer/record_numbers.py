"""Numbers for this node's own records: each greater than all before it, of this start and of earlier ones.
Pure.

They are reserved on the disk in blocks, ahead of their use: a number that others may have seen is never
given out again, even if the disk takes nothing while the node runs, and the node is killed then.
"""

from collections.abc import Callable

BLOCK = 4096  # records are signed when addresses change: enough for years of a broken disk


class Numbering:
    """`reserve(number)` notes durably that numbers up to this one may be used; False: it could not.

    `last` is what was noted last, `now` the clock in unix seconds: numbers begin above both. So even those of
    a start on a disk that takes nothing are greater than the last ones, unless the clock was set back, too.
    """

    def __init__(self, reserve: Callable[[int], bool], *, last: int, now: int) -> None:
        self._reserve = reserve
        self._next = max(last, now) + 1
        self._end = self._next + BLOCK
        reserve(self._end - 1)

    def take(self) -> int | None:
        """The next number; None when all that are reserved are used up and the disk takes nothing."""
        if self._end - self._next <= BLOCK // 2 and self._reserve(self._end - 1 + BLOCK):
            self._end += BLOCK
        if self._next >= self._end:
            return None
        self._next += 1
        return self._next - 1
