"""Descriptors on their way to a child: given away with the start, or closed with the role's use of them."""

import os


class Outgoing:
    """What a start of a child collects. Until `give`, they are ours: an error on the way leaks none."""

    def __init__(self) -> None:
        self._held: list[int] = []

    def add(self, descriptor: int) -> int:
        """Hold it; returns it."""
        self._held.append(descriptor)
        return descriptor

    def give(self) -> tuple[int, ...]:
        """All of them, for ChildSpec.hand_over: they are the child's owner's from here on."""
        given, self._held = tuple(self._held), []
        return given

    def close(self) -> None:
        """Close what was never given. Idempotent."""
        for descriptor in self.give():
            os.close(descriptor)
