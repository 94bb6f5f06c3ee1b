"""A journal of changed keys: each reader has a mark and sees what changed since. Pure.

Each key occurs once, at its latest change, so the journal never grows beyond the number of keys.
"""

from typing import Generic, TypeVar

K = TypeVar("K")


class Journal(Generic[K]):
    """`mark` counts changes; a reader keeps the mark up to which it has read."""

    def __init__(self) -> None:
        self._at: dict[K, int] = {}  # in order of the latest change
        self.mark = 0

    def touch(self, key: K) -> None:
        """Record that `key` changed now."""
        self.mark += 1
        self._at.pop(key, None)
        self._at[key] = self.mark

    def drop(self, key: K) -> None:
        """Remove `key`: no reader hears of it again."""
        self.mark += self._at.pop(key, None) is not None

    def since(self, mark: int) -> list[K]:
        """Return the keys that changed after `mark`, latest last, in time proportional to their number."""
        found: list[K] = []
        for key in reversed(self._at):
            if self._at[key] <= mark:
                break
            found.append(key)
        found.reverse()
        return found

    def __contains__(self, key: K) -> bool:
        return key in self._at

    def __len__(self) -> int:
        return len(self._at)
