"""A network that misbehaves on a virtual clock: delay, a bottleneck with any buffer, stall, silence, cut.

A `Pipe` is one direction: what is written waits in the buffer in front of the bottleneck, leaves it at
`rate`, and arrives `delay` later, in segments, as from a proxy that reads eagerly and forwards slowly.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_SEGMENT = 4 << 10  # bytes that arrive together


@dataclass(slots=True)
class Path:
    """The two directions of a link. Rates in bytes a second, delay one way in seconds."""

    rate: float | None = None
    delay: float = 0.0
    buffer: int = 64 << 20  # bytes that the sender may have waiting before it must pause
    segment: int = _SEGMENT


class Pipe:
    """One direction of a link."""

    def __init__(self, path: Path, arrive: Callable[[bytes], None]) -> None:
        self.path = path
        self.waiting = 0  # bytes written that have not left the bottleneck
        self.most_waiting = 0
        self.passed = 0  # bytes that have left the bottleneck
        self.stalled = False  # nothing leaves the bottleneck, nothing is lost
        self.silent = False  # whatever leaves it disappears
        self.cut = False
        self.on_room: Callable[[], None] = lambda: None  # called when a full buffer has room again
        self._arrive = arrive
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes] = deque()
        self._leaving = False
        self._was_full = False
        self._last_arrival = 0.0

    @property
    def full(self) -> bool:
        """The sender must pause."""
        if self.waiting >= self.path.buffer:
            self._was_full = True
        return self._was_full and self.waiting >= self.path.buffer

    def write(self, data: bytes) -> None:
        """Bytes into the buffer."""
        if self.cut:
            return
        for at in range(0, len(data), self.path.segment):
            self._queue.append(data[at : at + self.path.segment])
        self.waiting += len(data)
        self.most_waiting = max(self.most_waiting, self.waiting)
        self._next()

    def resume(self) -> None:
        """The stall is over."""
        self.stalled = False
        self._next()

    def _next(self) -> None:
        if self._leaving or self.stalled or self.cut or not self._queue:
            return
        segment = self._queue.popleft()
        self._leaving = True
        takes = len(segment) / self.path.rate if self.path.rate else 0.0
        self._loop.call_later(takes, self._left, segment)

    def _left(self, segment: bytes) -> None:
        self._leaving = False
        self.waiting -= len(segment)
        self.passed += len(segment)
        if not self.silent and not self.cut:
            self._last_arrival = max(self._last_arrival, self._loop.time() + self.path.delay)
            self._loop.call_at(self._last_arrival, self._arrived, segment)
        if self._was_full and self.waiting < self.path.buffer:
            self._was_full = False
            self.on_room()
        self._next()

    def _arrived(self, segment: bytes) -> None:
        if not self.cut:
            self._arrive(segment)
