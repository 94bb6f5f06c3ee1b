"""Which sets of workers are looked at, and in which orders: few of all that there are. Pure.

Of six workers all sets; of each set of up to three all orders, of larger ones those with the shortest way
from the head over all of them and back. The six are the best of four kinds: with the least time for a layer,
a share of the way included; the nearest; the fastest; those with most memory. Where there are more, sets grow
from nothing as well, until they hold the model, by the least time that each next one adds for a layer; and
the best of all is looked at again with one worker more, fewer, or another one. Of very many workers only the
best of the four kinds are looked at.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import combinations, pairwise, permutations

HEAD_END = ""  # as one end of a way
_MOST_CONSIDERED = 64  # workers; the best of more
_MOST_NODES = 6  # of which all sets are looked at
_MOST_ORDERED = 3  # of a set of which all orders are
_SHORTEST = 4  # orders of a larger set
_EXACT = 1e-9  # less than that share is no gain
_MOST_PASSES = 20  # of looking for a shorter way; three or four are usual
_MOST_BEGUN = 8  # workers around which a set grows
_MORE = 2  # workers beyond those that hold the model: what fits roughly may not fit

Ways = Callable[[str, str], float]
"""Seconds of the answer by which splits are compared, from one node to another one."""
Order = tuple["ConsideredWorker", ...]
Rank = Callable[["ConsideredWorker", Sequence["ConsideredWorker"]], float]
"""Of a worker beside some others: the lowest is the best."""


@dataclass(frozen=True, slots=True)
class ConsideredWorker:
    """`room`: layers for which it has memory; `layer`: seconds of an answer in each; `devices`: how many."""

    node: str
    room: int
    layer: float
    devices: int = 1


class WorkerOrders:
    """`needed`: layers that workers must hold at least, `layers` all of them; `least` workers take part."""

    def __init__(
        self,
        workers: Sequence[ConsideredWorker],
        ways: Ways,
        *,
        needed: int,
        layers: int,
        least: int,
        most_devices: int,
    ) -> None:
        self._ways = ways
        able = [one for one in workers if one.room]
        self._workers = able if len(able) <= _MOST_CONSIDERED else self._best(able, _MOST_CONSIDERED)
        self._needed = needed
        self._layers = layers
        self._least = least
        self._most_devices = most_devices

    def all(self) -> Iterator[Order]:
        """None of them twice."""
        kept = self._best(self._workers, _MOST_NODES)
        for count in range(len(kept) + 1):
            for chosen in combinations(kept, count):
                yield from self._ordered(chosen)
        if len(self._workers) > len(kept):
            seen: set[Order] = set()
            for grown in self._all_grown():
                order = short_way(grown, self._ways)
                if order not in seen and not {one.node for one in order} <= {one.node for one in kept}:
                    seen |= {order, order[::-1]}
                    yield from self._ordered(order)

    def beside(self, nodes: Sequence[str]) -> Iterator[Order]:
        """With one of these left out, one more, or another one in the place of one, each where it is least
        out of the way; and the same ones in other orders. Nothing where all sets were looked at.
        """
        if len(self._workers) <= _MOST_NODES:
            return
        used = [one for node in nodes for one in self._workers if one.node == node]
        others = [one for one in self._workers if one not in used]
        yield from self._ordered(used)
        fewer = [[other for other in used if other is not one] for one in used]
        yield from (tuple(some) for some in fewer if len(some) >= max(1, self._least))
        for some in (*fewer, used):
            for one in others:
                if sum(other.devices for other in some) + one.devices <= self._most_devices:
                    at = self._place(one, some)[1]
                    yield (*some[:at], one, *some[at:])

    def _ordered(self, some: Sequence[ConsideredWorker]) -> Iterator[Order]:
        if len(some) <= _MOST_ORDERED:
            yield from permutations(some)
        elif len(some) <= _MOST_NODES:
            yield from nsmallest(_SHORTEST, permutations(some), key=self._way_of)
        else:
            order = short_way(some, self._ways)
            yield from (order, order[::-1])

    def _best(self, workers: Sequence[ConsideredWorker], most: int) -> list[ConsideredWorker]:
        """Of each of the four kinds the best."""
        ranks: list[Callable[[ConsideredWorker], float]] = [
            lambda one: one.layer + 2 * self._ways(HEAD_END, one.node) / one.room,
            lambda one: self._ways(HEAD_END, one.node),
            lambda one: one.layer,
            lambda one: -one.room,
        ]
        ranked = [sorted(workers, key=rank) for rank in ranks]
        in_turn = dict.fromkeys(one for place in zip(*ranked, strict=True) for one in place)
        return list(in_turn)[:most]

    def _way_of(self, order: Sequence[ConsideredWorker]) -> float:
        return _length([HEAD_END, *(one.node for one in order), HEAD_END], self._ways)

    def _all_grown(self) -> Iterator[Order]:
        """Around several workers that are far from each other: what is best may be together anywhere."""
        yield from self._grown(lambda one, _: -one.room)
        yield from self._grown(self._added)
        begun: list[ConsideredWorker] = []
        nearest = {one.node: self._ways(HEAD_END, one.node) for one in self._workers}
        for _ in range(min(_MOST_BEGUN, len(self._workers))):
            begun.append(max(self._workers, key=lambda one: nearest[one.node]))
            for one in self._workers:
                nearest[one.node] = min(nearest[one.node], self._ways(begun[-1].node, one.node))
            nearest[begun[-1].node] = -1.0
            yield from self._grown(self._added, begun[-1])

    def _grown(self, rank: Rank, first: ConsideredWorker | None = None) -> Iterator[Order]:
        """The smallest that hold what they must, with those of which each lets the head hold less."""
        grown = [first] if first is not None else []
        left = [one for one in self._workers if one is not first]
        more = 0
        while more < _MORE:
            spare = self._most_devices - sum(one.devices for one in grown)
            left = [one for one in left if one.devices <= spare]
            if not left:
                break
            best = min(left, key=lambda one: rank(one, grown))
            left.remove(best)
            at = self._place(best, grown)[1]
            grown.insert(at, best)
            room = sum(one.room for one in grown)
            if room >= self._needed and len(grown) >= self._least:
                yield tuple(grown)
                more += room >= self._layers

    def _added(self, one: ConsideredWorker, grown: Sequence[ConsideredWorker]) -> float:
        """Seconds for each layer that it would hold."""
        lacking = self._layers - sum(other.room for other in grown)
        return one.layer + self._place(one, grown)[0] / max(1, min(one.room, lacking))

    def _place(self, one: ConsideredWorker, grown: Sequence[ConsideredWorker]) -> tuple[float, int]:
        """How much longer the way becomes with it, and where in the order it does so least."""
        stops = [HEAD_END, *(other.node for other in grown), HEAD_END]
        return min(
            (self._ways(a, one.node) + self._ways(one.node, b) - self._ways(a, b), at)
            for at, (a, b) in enumerate(pairwise(stops))
        )


def short_way(order: Sequence[ConsideredWorker], ways: Ways) -> Order:
    """Another order, in which the way from the head over all of them and back is short.

    The same one where none is shorter.

    The given one and the nearest next, each made better by turning a part of it round, and by taking one to
    another place (2-opt and or-opt), as long as that gains something. Of very many only the nearest next: the
    other takes time with the third power of their number.
    """
    given = {one.node: one for one in order}
    nearest: list[str] = []
    left = list(given)
    while left:
        before = nearest[-1] if nearest else HEAD_END
        nearest.append(min(left, key=lambda node: ways(before, node)))
        left.remove(nearest[-1])
    begun = [list(given), nearest]
    if len(given) <= _MOST_CONSIDERED:
        begun = [_improved(nodes, ways) for nodes in begun]
    lengths = [_length([HEAD_END, *nodes, HEAD_END], ways) for nodes in begun]
    best = begun[1] if lengths[1] < lengths[0] * (1 - _EXACT) else begun[0]
    return tuple(given[node] for node in best)


def _improved(nodes: Sequence[str], ways: Ways) -> list[str]:
    stops = [HEAD_END, *nodes, HEAD_END]
    for _ in range(_MOST_PASSES):
        before = list(stops)
        for begin in range(1, len(stops) - 1):
            for end in range(begin + 1, len(stops) - 1):
                _turn(stops, begin, end, ways)
            _move(stops, begin, ways)
        if stops == before:
            break
    return stops[1:-1]


def _turn(stops: list[str], begin: int, end: int, ways: Ways) -> None:
    """The part from one to the other, if that is shorter."""
    part = stops[begin - 1 : end + 2]
    other = [part[0], *part[-2:0:-1], part[-1]]
    if _length(other, ways) < _length(part, ways) * (1 - _EXACT):
        stops[begin - 1 : end + 2] = other


def _length(stops: Sequence[str], ways: Ways) -> float:
    return sum(ways(a, b) for a, b in pairwise(stops))


def _move(stops: list[str], at: int, ways: Ways) -> None:
    """The one that is there, to where it is least out of the way."""
    node = stops[at]
    left = [*stops[:at], *stops[at + 1 :]]

    def added(place: int) -> float:
        a, b = left[place], left[place + 1]
        return ways(a, node) + ways(node, b) - ways(a, b)

    best = min(range(len(left) - 1), key=added)
    if added(best) < added(at - 1) - _EXACT * ways(HEAD_END, node):
        stops[:] = [*left[: best + 1], node, *left[best + 1 :]]
