"""How long a lent mesh-server computes, as its daemon sees the bytes pass. Pure but for its clock.

A *turn* is what leads to one result. It can begin when the head has asked for it, what other workers push for
it is there, and the result before it is out; it ends with the first byte of the result. So it has the time
that mesh-server takes to copy, as well.

The last worker gives one result for all micro batches of a prompt. What it computes of the first ones falls
between the arrivals of what it needs. If it is slower than the workers before it, it is busy since the first
arrival; if it is faster, it takes for each as long as for the last one. Both bound what it can have computed.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from meshd.identity.keys import PeerId
from meshd.rpc import mesh_protocol as wire
from meshd.wire.capacity import ComputedSpan
from meshd.worker.leases import Lease

_KEPT_TURNS = 8192  # the newest: about as many tokens
_MOST_PENDING = 8192  # results asked for, and pushes that are there; beyond them nothing can be told
_COMPUTES = frozenset({wire.GRAPH, wire.COMPUTE})
_WANTS = frozenset({wire.PUSH, wire.READ})


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A result: since when its computation was asked for (None: it needs none), and pushes that it needs."""

    asked: float | None
    takes: int


class TurnTimes:
    """Of one lease."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._turns: deque[tuple[float, float, float]] = deque(maxlen=_KEPT_TURNS)  # begin, end, busy
        self._wanted: deque[_Wanted] = deque()
        self._arrivals: deque[float] = deque()
        self._asked: float | None = None
        self._takes = 0
        self._last = 0.0  # result
        self._owed = 0  # pushes whose results went out before anybody said that they had come
        self._seen = now()
        self._open = 0  # results that are awaited, also where turns cannot be told apart
        self._lost_count = False

    @property
    def quiet_seconds(self) -> float:
        """Return for how long nothing has passed; 0 while a result is awaited."""
        return 0.0 if self._open else self._now() - self._seen

    def with_head(self, number: int) -> None:
        """A message of the head, or for it."""
        if number != wire.PROGRESS:
            self._seen = self._now()
        if number in _COMPUTES:
            self._asked = self._now() if self._asked is None else self._asked
        elif number == wire.TAKE:
            self._takes += 1
        elif number in _WANTS:
            self._open += 1
            self._wanted.append(_Wanted(self._asked, self._takes))
            self._asked, self._takes = None, 0
            self._check()
        elif number == wire.DATA:
            self._result()

    def arrived(self, _number: int) -> None:
        """A push of another worker."""
        self._seen = self._now()
        if self._owed:
            self._owed -= 1
            return
        self._arrivals.append(self._seen)
        self._check()

    def left(self, _number: int) -> None:
        """A push for another worker."""
        self._result()

    def lose_count(self) -> None:
        """Give up: a push has come or left without a word."""
        self._lost_count = True
        self._check()

    def spent(self, spans: Sequence[tuple[float, float]]) -> tuple[ComputedSpan, ...]:
        """Of each span the turns whose middle lies in it; spans in seconds before now, begin and end.

        Nothing where turns cannot be told apart.
        """
        if self._lost_count:
            return ()
        now, found = self._now(), []
        for begin, end in spans:
            busy = [busy for one, two, busy in self._turns if now - begin <= (one + two) / 2 < now - end]
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
            self._turns.append((first, now, min(now - first, max(1, count) * (now - last))))
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
    """As TurnTimes.spent, for this lease of this head; nothing if the head has no such lease."""
    own = [turns for lease, turns in leases if (lease.peer, lease.lease_id) == (peer, lease_id)]
    return own[0].spent(spans) if own and spans else ()
