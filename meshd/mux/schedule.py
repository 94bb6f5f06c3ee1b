"""Schedules streams with data to send: interactive before bulk, round robin within each.

Every turn is one frame of at most the same size, so streams that always have data get equal bytes. One turn
in 16 goes to bulk even while interactive data waits: an endless interactive stream must not stop a load.
"""

from collections import deque

from meshd.mux.config import Priority

_BULK_TURN = 16


class Schedule:
    """Two rings of stream ids."""

    def __init__(self) -> None:
        self._rings: tuple[deque[int], deque[int]] = (deque(), deque())
        self.waiting: set[int] = set()  # all of them
        self._turns = 0  # of interactive streams while bulk waited

    def add(self, stream_id: int, priority: Priority) -> None:
        """Queue a stream that has something to send, unless it waits already."""
        if stream_id not in self.waiting:
            self.waiting.add(stream_id)
            self._rings[priority].append(stream_id)

    def next(self) -> int | None:
        """Return the next stream and take it out of its ring; `add` it again if it has more."""
        interactive, bulk = self._rings
        ring = interactive
        if bulk and (not interactive or self._turns >= _BULK_TURN - 1):
            ring = bulk
        if not ring:
            return None
        self._turns = self._turns + 1 if ring is interactive and bulk else 0
        stream_id = ring.popleft()
        self.waiting.discard(stream_id)
        return stream_id

    def remove(self, stream_id: int, priority: Priority) -> None:
        """Remove a stream that is gone."""
        if stream_id in self.waiting:
            self.waiting.discard(stream_id)
            self._rings[priority].remove(stream_id)
