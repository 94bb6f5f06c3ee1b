"""Which workers a head does without for a while, and why: pure.

A worker that fails while a model is loaded over it gets a second try; then it is left out, so that one bad
worker never keeps the others from serving. Its time out ends by itself, and at once when it reconnects.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus

TRIES = 2
FIRST_SECONDS = 30.0
MOST_SECONDS = 600.0
MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True)
class Mark:
    """Failures of one worker since `since`, when its connection began; `until`: left out, loop time."""

    failures: int
    since: float
    until: float
    text: str


class Standings:
    """The marks of a head's workers."""

    def __init__(self) -> None:
        self._marks: dict[PeerId, Mark] = {}

    def failed(self, worker: PeerStatus, why: str, now: float) -> None:
        """A load failed because of this worker."""
        mark = self._of(worker)
        failures = 1 + (mark.failures if mark is not None else 0)
        seconds = 0.0
        if failures >= TRIES:
            seconds = min(MOST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures - TRIES, MOST_DOUBLINGS))
        text = f"worker {worker.name} is left out for {seconds:.0f} s after {failures} tries: {why}"
        self._marks[worker.peer] = Mark(failures, worker.since, now + seconds, text)

    def worked(self, peers: Iterable[PeerId]) -> None:
        """A load succeeded with these."""
        for peer in peers:
            self._marks.pop(peer, None)

    def why_not(self, worker: PeerStatus, now: float) -> str | None:
        """Why this worker is left out now, or None."""
        mark = self._of(worker)
        return mark.text if mark is not None and now < mark.until else None

    def next_try(self, workers: Iterable[PeerStatus], now: float) -> float | None:
        """When the first of these that are left out may be tried again, in loop time."""
        marks = [mark for worker in workers if (mark := self._of(worker)) is not None and now < mark.until]
        return min((mark.until for mark in marks), default=None)

    def _of(self, worker: PeerStatus) -> Mark | None:
        mark = self._marks.get(worker.peer)
        return mark if mark is not None and mark.since == worker.since else None
