"""Descriptors on their way to a child: given away at its start, or closed when the role ends their use."""

import os
from collections.abc import Callable


class Outgoing:
    """The descriptors for a child that is about to start.

    Until `give` they are ours, so an error on the way leaks none.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._at_end: list[Callable[[], None]] = []

    def add(self, descriptor: int) -> int:
        """Hold `descriptor` and return it."""
        self._held.append(descriptor)
        return descriptor

    def give(self) -> tuple[int, ...]:
        """Return all descriptors, for ChildSpec.hand_over: from here on the child's owner has them."""
        given, self._held = tuple(self._held), []
        return given

    def at_end(self, action: Callable[[], None]) -> None:
        """Run `action` when these descriptors are closed."""
        self._at_end.append(action)

    def close(self) -> None:
        """Close the descriptors that were never given, and run the actions of `at_end`. Idempotent."""
        for descriptor in self.give():
            os.close(descriptor)
        while self._at_end:
            self._at_end.pop()()
