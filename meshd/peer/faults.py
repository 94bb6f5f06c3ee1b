"""What peers have done wrong lately, counted for each. Pure.

A failure that nobody foresaw is put up with a few times. A peer that goes on gets no links for a while:
whether it means to or not, this node cannot work with it. Broken rules end a link and are counted only. Both
are told to people for an hour.
"""

from dataclasses import dataclass, field

from meshd.base.peer_limits import FAULTS, FAULTS_KNOWN
from meshd.base.token_bucket import TokenBucket
from meshd.identity.keys import PeerId

REFUSED_SECONDS = 60.0
TOLD_MINUTES = 60  # after which nobody needs to know
_MAX_WORDS = 200


@dataclass(slots=True)
class _Record:
    """By the minute, oldest first."""

    minutes: dict[int, int] = field(default_factory=dict)
    what: str = ""

    def add(self, now: float, what: str) -> None:
        minute = int(now // 60)
        self.minutes[minute] = self.minutes.get(minute, 0) + 1
        self.what = what[:_MAX_WORDS]
        self.drop_old(now)

    def drop_old(self, now: float) -> None:
        while self.minutes and next(iter(self.minutes)) <= now // 60 - TOLD_MINUTES:
            del self.minutes[next(iter(self.minutes))]


class Faults:
    """`now` in loop seconds."""

    def __init__(self) -> None:
        self._buckets: dict[PeerId, TokenBucket] = {}
        self._until: dict[PeerId, float] = {}
        self._records: dict[PeerId, _Record] = {}

    def blame(self, peer: PeerId, now: float, what: str) -> None:
        """One more failure of its work that nobody foresaw."""
        bucket = self._buckets.pop(peer, None) or FAULTS.bucket(now)
        self._buckets[peer] = bucket
        if not bucket.spend(1, now):
            self._until.pop(peer, None)
            self._until[peer] = now + REFUSED_SECONDS
        for kept in (self._buckets, self._until):
            if len(kept) > FAULTS_KNOWN.most:
                del kept[next(iter(kept))]
        self.broke(peer, now, what)

    def broke(self, peer: PeerId, now: float, what: str) -> None:
        """It broke the rules of the protocol."""
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > FAULTS_KNOWN.most:
            del self._records[next(iter(self._records))]
        record.add(now, what)

    def refuses(self, peer: PeerId, now: float) -> bool:
        """Are its links refused now?"""
        return now < self._until.get(peer, now)

    def told(self, peer: PeerId, now: float) -> tuple[int, str]:
        """How often in the last hour, and what it was the last time."""
        record = self._records.get(peer)
        if record is None:
            return 0, ""
        record.drop_old(now)
        count = sum(record.minutes.values())
        return count, record.what if count else ""
