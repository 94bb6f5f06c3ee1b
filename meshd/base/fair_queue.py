"""A bounded queue with several producers: none can displace the items of others. Pure."""

from collections import Counter, deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


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
        for level, one in enumerate(who):
            self._below.setdefault(who[:level], Counter())[one] += 1
        if len(self._items) > self._most:
            most = self._largest()
            at = next(index for index, (one, _) in enumerate(self._items) if one == most)
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
