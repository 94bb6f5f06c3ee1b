"""Bytes in transit over a distance: each comes out after the delay of the distance. Pure.

It is a delay of the wire and not a sleep for each message: many may be under way at once, so throughput and
pipelining stay as they are. `hold` is the other kind, of a worker that computes longer: what comes after it
waits as well.
"""

from collections import deque

HELD_BYTES = 64 << 20  # what 1 GB/s puts on a way of 60 ms; more is not read from the sender


class DelayLine:
    """One direction of one connection. `now` is in seconds of any monotonic clock."""

    def __init__(self, seconds: float, *, limit: int = HELD_BYTES) -> None:
        """Set up an empty line. `limit`: bytes that may be under way; the last chunk may go beyond it."""
        self._seconds = seconds
        self._limit = limit
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._latest = 0.0
        self.held = 0

    @property
    def room(self) -> bool:
        """True if more may be put in."""
        return self.held < self._limit

    @property
    def next_at(self) -> float | None:
        """The time when the next bytes come out; None: nothing is under way."""
        return self._under_way[0][0] if self._under_way else None

    def put(self, data: bytes, now: float) -> None:
        """Put bytes in; `b""` is the end, which travels as bytes do."""
        self._latest = max(self._latest, now + self._seconds)
        self._under_way.append((self._latest, data))
        self.held += len(data)

    def hold(self, seconds: float, now: float) -> None:
        """Delay whatever is put in from now on by `seconds` more than the distance."""
        self._latest = max(self._latest, now + self._seconds) + seconds

    def take(self, now: float) -> bytes | None:
        """Return the next bytes that have arrived by now; None: nothing has."""
        if not self._under_way or self._under_way[0][0] > now:
            return None
        data = self._under_way.popleft()[1]
        self.held -= len(data)
        return data
