"""When llama-server waits for its workers, as its daemon sees the bytes pass. Pure but for its clock."""

from collections import deque
from collections.abc import Callable

from meshd.rpc import mesh_protocol as wire

_KEPT = 8192  # intervals of each kind, the newest: about as many tokens
_ASKS = frozenset({wire.GRAPH, wire.COMPUTE, wire.READ})

Interval = tuple[float, float]


class AwayTimes:
    """Of one life of the model. Implements tunnel.interface.Flow for all of its tunnels together.

    *Away* is the time from the first request of a step to the last result that was asked for. *Held* is the
    time in which bytes of llama-server waited in this daemon, as a stream took nothing more.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._away: deque[Interval] = deque(maxlen=_KEPT)
        self._held: deque[Interval] = deque(maxlen=_KEPT)
        self._began: float | None = None
        self._reads = 0
        self._holding = 0
        self._held_from = 0.0

    def seen(self, number: int) -> None:
        """A message has passed, in either direction."""
        if number in _ASKS:
            if self._began is None:
                self._began = self._now()
            self._reads += number == wire.READ
        elif number == wire.DATA and self._reads:
            self._reads -= 1
            if not self._reads and self._began is not None:
                self._away.append((self._began, self._now()))
                self._began = None

    def target_waits(self, waits: bool) -> None:
        """llama-server takes nothing more: its own doing. See Flow."""

    def peer_waits(self, waits: bool) -> None:
        """See Flow."""
        if waits and not self._holding:
            self._held_from = self._now()
        self._holding = max(0, self._holding + (1 if waits else -1))
        if not waits and not self._holding:
            self._held.append((self._held_from, self._now()))

    def away(self, begin: float, end: float) -> float:
        """Seconds between these times."""
        return _within(self._away, begin, end)

    def steps(self, begin: float, end: float) -> int:
        """That ended between these times: rounds of tokens, and steps of prompts."""
        return sum(begin < two <= end for _, two in self._away)

    def held(self, begin: float, end: float) -> float:
        """Seconds between these times."""
        return _within(self._held, begin, end)


def _within(intervals: deque[Interval], begin: float, end: float) -> float:
    return sum(max(0.0, min(two, end) - max(one, begin)) for one, two in intervals)
