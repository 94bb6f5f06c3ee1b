"""Workers that a head does without for a while, and why. Pure.

A worker that fails while a model is loaded over it gets a second try; then it is left out, so that one bad
worker never keeps the others from serving. Its time out ends by itself. Once it ends as well when the worker
reconnects, for somebody may have mended it.

A worker that ends its leases soon after the load, again and again, is left out too, and so is one that the
head has given up because it did not answer: but only where enough others are there (worker_choice.py). No
reconnect changes that. Two of which one has ended a lease, and nobody knows which, count as if both had; and
they do not push to each other any more (push_plan.py), which makes the next end certain.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from meshd.base.peer_limits import APART, EARLY_ENDS, MARKED
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus

TRIES = 2
FIRST_SECONDS = 30.0
MOST_SECONDS = 600.0
STEADY_SECONDS = 300.0  # a lease that lived so long after the load was of use
ENDS = EARLY_ENDS.most + 1
FIRST_END_SECONDS = 60.0
MOST_END_SECONDS = 3600.0
MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True)
class Failures:
    """Count failures of one worker since `since`, when its connection began; `until`: left out, loop time.

    `forgiven`: failures before that were forgotten because it had reconnected.
    """

    failures: int
    since: float
    until: float
    text: str
    forgiven: bool = False


@dataclass(frozen=True, slots=True)
class EarlyEnds:
    """Count leases in a row that a worker has ended too soon; left out `until`, loop time, and why."""

    count: int
    until: float
    text: str


M = TypeVar("M", Failures, EarlyEnds)


class WorkerBackoff:
    """Leave workers out for a while, for what they have done; by key."""

    def __init__(self) -> None:
        self._failures: dict[PeerId, Failures] = {}
        self._ends: dict[PeerId, EarlyEnds] = {}
        self._apart: dict[frozenset[PeerId], None] = {}

    def failed(self, worker: PeerStatus, why: str, now: float) -> None:
        """Note that a load failed because of this worker."""
        mark = self._of(worker)
        before = self._failures.get(worker.peer)
        failures = 1 + (mark.failures if mark is not None else 0)
        seconds = _doubled(FIRST_SECONDS, failures - TRIES, MOST_SECONDS)
        text = f"worker {worker.name} is left out for {seconds:.0f} s after {failures} tries: {why}"
        forgiven = before is not None and (before.forgiven or mark is None)
        _remember(
            self._failures,
            worker.peer,
            Failures(failures, worker.since, now + seconds, text, forgiven=forgiven),
        )

    def worked(self, peers: Iterable[PeerId]) -> None:
        """Note that a load succeeded with these."""
        for peer in peers:
            self._failures.pop(peer, None)

    def exclusion_reason(self, worker: PeerStatus, now: float) -> str | None:
        """Return why this worker is left out now, or None."""
        mark = self._of(worker)
        return mark.text if mark is not None and now < mark.until else None

    def next_try(self, workers: Iterable[PeerStatus], now: float) -> float | None:
        """Return when the first of these that are left out may be tried again, in loop time."""
        marks = [mark for worker in workers if (mark := self._of(worker)) is not None and now < mark.until]
        return min((mark.until for mark in marks), default=None)

    def _of(self, worker: PeerStatus) -> Failures | None:
        """Return its failures; a reconnect ends them, the first time."""
        mark = self._failures.get(worker.peer)
        return mark if mark is not None and (mark.forgiven or mark.since == worker.since) else None

    # Leases that end after the load.

    def ended(
        self, worker: PeerStatus, why: str, now: float, *, lasted: float, in_doubt: bool = False
    ) -> None:
        """Note that its lease ended by its doing, or in doubt, `lasted` seconds after the load; 0 before."""
        if lasted >= STEADY_SECONDS:
            self._ends.pop(worker.peer, None)
            return
        count = 1 + self._ended_before(worker.peer)
        done = f"it failed {count} times soon after loading"
        if in_doubt:
            done = (
                f"it, or a worker that it exchanges activations with, failed {count} times soon after loading"
            )
        self._leave_out(worker, count, f"{done}, the last because {why}", now)

    def hung(self, worker: PeerStatus, why: str, now: float) -> None:
        """Note that the head gave it up: once is enough, for that took long."""
        self._leave_out(worker, max(ENDS, 1 + self._ended_before(worker.peer)), why, now)

    def _ended_before(self, peer: PeerId) -> int:
        return self._ends[peer].count if peer in self._ends else 0

    def _leave_out(self, worker: PeerStatus, count: int, why: str, now: float) -> None:
        seconds = _doubled(FIRST_END_SECONDS, count - ENDS, MOST_END_SECONDS)
        text = f"worker {worker.name} is left out for {seconds:.0f} s: {why}"
        _remember(self._ends, worker.peer, EarlyEnds(count, now + seconds, text))

    def ends(self, peer: PeerId) -> int:
        """Count its leases in a row that have ended too soon."""
        return self._ended_before(peer)

    def unsteady(self, peer: PeerId, now: float) -> str | None:
        """Return why it is better done without now, or None."""
        ends = self._ends.get(peer)
        return ends.text if ends is not None and now < ends.until else None

    # Pairs in doubt.

    def part(self, one: PeerId, other: PeerId) -> None:
        """Keep these two from pushing to each other any more."""
        pair = frozenset((one, other))
        self._apart.pop(pair, None)
        self._apart[pair] = None
        if len(self._apart) > APART.most:
            del self._apart[next(iter(self._apart))]

    def are_apart(self, one: PeerId, other: PeerId) -> bool:
        """Return True if these two are kept apart."""
        return frozenset((one, other)) in self._apart


def _doubled(first: float, times: int, most: float) -> float:
    """Double `first` so many times; nothing before it begins."""
    return min(most, first * 2.0 ** min(times, MOST_DOUBLINGS)) if times >= 0 else 0.0


def _remember(marks: dict[PeerId, M], peer: PeerId, mark: M) -> None:
    marks.pop(peer, None)
    marks[peer] = mark
    if len(marks) > MARKED.most:
        del marks[next(iter(marks))]
