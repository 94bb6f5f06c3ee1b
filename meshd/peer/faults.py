"""Failures that nobody foresaw, counted for each peer whose work it was: pure.

A few are put up with. A peer that goes on gets no links for a while: whether it means to or not, this node
cannot work with it.
"""

from meshd.base.bucket import TokenBucket
from meshd.base.shares import FAULTS
from meshd.identity.keys import PeerId

MAX_PEERS = 256  # of whom failures are remembered; the oldest is forgotten
REFUSED_SECONDS = 60.0


class Faults:
    """`now` in loop seconds."""

    def __init__(self) -> None:
        self._buckets: dict[PeerId, TokenBucket] = {}
        self._until: dict[PeerId, float] = {}

    def blame(self, peer: PeerId, now: float) -> None:
        """One more."""
        bucket = self._buckets.pop(peer, None) or FAULTS.bucket(now)
        self._buckets[peer] = bucket
        if not bucket.spend(1, now):
            self._until.pop(peer, None)
            self._until[peer] = now + REFUSED_SECONDS
        for kept in (self._buckets, self._until):
            if len(kept) > MAX_PEERS:
                del kept[next(iter(kept))]

    def refuses(self, peer: PeerId, now: float) -> bool:
        """Are its links refused now?"""
        return now < self._until.get(peer, now)
