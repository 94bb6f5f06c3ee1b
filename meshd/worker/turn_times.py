"""The time that a lent mesh-server computes, as its daemon sees bytes pass. Pure but for its clock.

A *turn* leads to one result. It can begin when the head has asked for the result, the data that other workers
push for it has arrived, and the previous result is out. It ends with the first byte of the result, so it
includes the time that mesh-server takes to copy.

The last worker gives one result for all micro batches of a prompt. It computes the first batches between the
arrivals of their data. If it is slower than the workers before it, it is busy since the first arrival; if it
is faster, it takes as long for each batch as for the last one. Both bound the time that it can have computed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from meshd.identity.keys import PeerId
from meshd.rpc import mesh_protocol as wire
from meshd.wire.capacity import ComputedSpan
from meshd.worker.leases import Lease

_KEPT_TURNS = 8192  # the newest: about as many tokens
# Results that were asked for, and pushes that have arrived; beyond this nothing is known.
_MOST_PENDING = 8192
_COMPUTES = frozenset({wire.GRAPH, wire.COMPUTE})
_WANTS = frozenset({wire.PUSH, wire.READ})


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A requested result: when its computation was requested (None: it needs none), and its pushes."""

    asked: float | None
    takes: int


class TurnTimes:
    """The turns of one lease."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._turns: deque[tuple[float, float, float]] = deque(maxlen=_KEPT_TURNS)  # begin, end, busy
        self._wanted: deque[_Wanted] = deque()
        self._arrivals: deque[float] = deque()
        self._asked: float | None = None
        self._takes = 0
        self._last = 0.0  # result
        self._owed = 0  # pushes whose results went out before anybody reported that they had come
        self._seen = now()
        self._open = 0  # awaited results, counted even if turns cannot be distinguished
        self._lost_count = False
        self.seconds = 0.0  # of all turns so far

    @property
    def quiet_seconds(self) -> float:
        """The seconds since the last message; 0 while a result is awaited."""
        return 0.0 if self._open else self._now() - self._seen

    def with_head(self, number: int) -> None:
        """Note a message from the head or to it, by its number."""
        if number != wire.PROGRESS:
            self._seen = self._now()
        if number in _COMPUTES:
            self._asked = self._now() if self._asked is None else self._asked
        elif number == wire.TAKE:
            self._takes += 1
        elif number == wire.SUM:  # it waits for others within a turn, for nobody knows how long
            self._lost_count = True
            self._check()
        elif number in _WANTS:
            self._open += 1
            self._wanted.append(_Wanted(self._asked, self._takes))
            self._asked, self._takes = None, 0
            self._check()
        elif number == wire.DATA:
            self._result()

    def arrived(self, _number: int) -> None:
        """Note a push from another worker."""
        self._seen = self._now()
        if self._owed:
            self._owed -= 1
            return
        self._arrivals.append(self._seen)
        self._check()

    def left(self, _number: int) -> None:
        """Note a push to another worker."""
        self._result()

    def lose_count(self) -> None:
        """Give up: a push has come or left unreported."""
        self._lost_count = True
        self._check()

    def spent(self, spans: Sequence[tuple[float, float]]) -> tuple[ComputedSpan, ...]:
        """Return for each span the busy time and the number of the turns whose middle lies in it.

        A span is its begin and end in seconds before now. Empty if turns cannot be distinguished.
        """
        if self._lost_count:
            return ()
        now, found = self._now(), []
        for begin, end in spans:
            busy = [
                busy for start, stop, busy in self._turns if now - begin <= (start + stop) / 2 < now - end
            ]
            found.append(ComputedSpan(int(sum(busy) * 1e6), len(busy)))
        return tuple(found)

    def _result(self) -> None:
        self._open = max(0, self._open - 1)
        if not self._wanted:
            return
        wanted, now = self._wanted.popleft(), self._now()
        count = min(wanted.takes, len(self._arrivals))
        arrivals = [self._arrivals.popleft() for _ in range(count)]
        self._owed += wanted.takes - count
        if wanted.asked is not None:
            first = max(arrivals[0] if arrivals else wanted.asked, wanted.asked, self._last)
            last = max(arrivals[-1] if arrivals else wanted.asked, first)
            busy = min(now - first, max(1, count) * (now - last))
            self._turns.append((first, now, busy))
            self.seconds += busy
        self._last = now

    def _check(self) -> None:
        if max(len(self._wanted), len(self._arrivals)) > _MOST_PENDING:
            self._lost_count = True
        if self._lost_count:
            self._wanted.clear()
            self._arrivals.clear()


def computed_for(
    leases: Iterable[tuple[Lease, TurnTimes]],
    peer: PeerId,
    lease_id: bytes,
    spans: Sequence[tuple[float, float]],
) -> tuple[ComputedSpan, ...]:
    """Return TurnTimes.spent for this lease of this head; empty if the head has no such lease."""
    own = [turns for lease, turns in leases if (lease.peer, lease.lease_id) == (peer, lease_id)]
    return own[0].spent(spans) if own and spans else ()
