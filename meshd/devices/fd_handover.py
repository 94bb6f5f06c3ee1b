"""Descriptors on their way to a child: given away with the start, or closed with the role's use of them."""

import os
from collections.abc import Callable


class Outgoing:
    """What a start of a child collects. Until `give`, they are ours: an error on the way leaks none."""

    def __init__(self) -> None:
        self._held: list[int] = []
        self._at_end: list[Callable[[], None]] = []

    def add(self, descriptor: int) -> int:
        """Hold it; returns it."""
        self._held.append(descriptor)
        return descriptor

    def give(self) -> tuple[int, ...]:
        """All of them, for ChildSpec.hand_over: they are the child's owner's from here on."""
        given, self._held = tuple(self._held), []
        return given

    def at_end(self, action: Callable[[], None]) -> None:
        """Do this when it is closed."""
        self._at_end.append(action)

    def close(self) -> None:
        """Close what was never given, and do what was left for the end. Idempotent."""
        for descriptor in self.give():
            os.close(descriptor)
        while self._at_end:
            self._at_end.pop()()
