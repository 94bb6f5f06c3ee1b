"""Which keys changed last, in order: whoever reads it with a mark of its own sees what is new to it. Pure.

Each key stands in it once, at its latest change, so that it never grows beyond the keys that there are.
"""

from typing import Generic, TypeVar

K = TypeVar("K")


class Journal(Generic[K]):
    """`mark` counts changes; a reader keeps the mark up to which it has read."""

    def __init__(self) -> None:
        self._at: dict[K, int] = {}  # in order of the latest change
        self.mark = 0

    def touch(self, key: K) -> None:
        """`key` has changed now."""
        self.mark += 1
        self._at.pop(key, None)
        self._at[key] = self.mark

    def drop(self, key: K) -> None:
        """`key` is gone: nobody is told of it any more."""
        self.mark += self._at.pop(key, None) is not None

    def since(self, mark: int) -> list[K]:
        """The keys that changed after `mark`, the latest last; takes as long as there are such keys."""
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
