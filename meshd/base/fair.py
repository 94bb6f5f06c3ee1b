"""A bounded queue that several fill: nobody pushes out the items of others. Pure."""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """In the order in which items came; when it is full, the oldest item of the one with most goes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._items: deque[tuple[Hashable, T]] = deque()
        self._of: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, who: Hashable, item: T) -> None:
        """Put it at the end."""
        self._items.append((who, item))
        self._of[who] += 1
        if len(self._items) > self._most:
            most = max(self._of, key=lambda one: self._of[one])
            at = next(index for index, (one, _) in enumerate(self._items) if one == most)
            del self._items[at]
            self._less(most)

    def pop(self) -> T:
        """The first item. Raises IndexError when there is none."""
        who, item = self._items.popleft()
        self._less(who)
        return item

    def _less(self, who: Hashable) -> None:
        self._of[who] -= 1
        if not self._of[who]:
            del self._of[who]
