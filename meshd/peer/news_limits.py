"""How much of a member's news is listened to: what it costs to check and answer them, how many do not hold.

It is kept for a member, not for a stream or a session: a new one is no new start.
"""

import asyncio

from meshd.base import log
from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import (
    ANSWERED,
    ANSWERED_OF_ISSUER,
    COMPARED,
    DIGESTS,
    NEWS_CHECKS,
    NEWS_FAULTS,
)
from meshd.base.rate_by_key import TokenBuckets
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter

Issuers = TokenBuckets[Admitter | PeerId]

NEW_COST = 1.0  # a statement whose signatures are checked
NEW_BAN_COST = 5.0  # one that is written to the disk before it is acted on, too
KNOWN_COST = 0.1  # one that is known: a hash
LEAST_PAUSE = 0.001  # shorter ones are what rounding leaves
_MANY_MEMBERS = 64  # members that are remembered before those that owe nothing are forgotten
LOG = log.get("peer")


class NewsLimits:
    """What one member may tell, and be told, at a time."""

    def __init__(self, peer: PeerId, issuers: Issuers, now: float) -> None:
        self._peer = peer
        self._issuers = issuers
        self._checks = NEWS_CHECKS.bucket(now)
        self._faults = NEWS_FAULTS.bucket(now)
        self._compared = COMPARED.bucket(now)
        self._digests = DIGESTS.bucket(now)
        self._answered = ANSWERED.bucket(now)
        self.issuer: Admitter | PeerId = peer  # in whose share it counts as well
        self.checked = 0.0  # what its news have cost, in all

    async def pause(self, cost: float) -> None:
        """Let others have their turn, and wait while the member has told too much."""
        self.checked += cost
        await asyncio.sleep(self._checks.take(cost, asyncio.get_running_loop().time()))

    def fault(self, why: str) -> None:
        """It told what does not hold. Raises RemoteProtocolError when that was too often."""
        if not self._faults.spend(1, asyncio.get_running_loop().time()):
            raise RemoteProtocolError(f"too many invalid news, the last one: {why}", code="news")
        LOG.info("news_dropped", peer=self._peer.short, why=why)

    def compares(self, now: float) -> bool:
        """May it have another answer to its hashes? That may be everything there is."""
        return self._compared.spend(1, now)

    def digests(self, now: float) -> bool:
        """May it have another digest compared? The answer to 16 bytes is 2 KiB."""
        return self._digests.spend(1, now)

    def answered(self, size: int, now: float) -> None:
        """So many bytes were told to it because its hashes differ."""
        self._answered.take(size, now)
        self._issuers.of(self.issuer, now).take(size, now)

    def rest(self, now: float) -> float:
        """Seconds until it may be told more for that reason; 0: now."""
        pause = max(self._answered.take(0, now), self._issuers.of(self.issuer, now).take(0, now))
        return pause if pause > LEAST_PAUSE else 0.0

    def clear(self, now: float) -> bool:
        """Nothing is owed."""
        buckets = (self._checks, self._faults, self._compared, self._digests, self._answered)
        return all(bucket.full(now) for bucket in buckets)


class NewsLimitsByMember:
    """The limits of all members that owe something."""

    def __init__(self) -> None:
        self._of: dict[PeerId, NewsLimits] = {}
        self._issuers: Issuers = TokenBuckets(ANSWERED_OF_ISSUER)

    def of(self, peer: PeerId, now: float, *, admitter: Admitter | None = None) -> NewsLimits:
        """The same one for as long as it owes something; `admitter`: who let it in, where that is known."""
        if len(self._of) >= _MANY_MEMBERS:
            self._of = {one: limits for one, limits in self._of.items() if not limits.clear(now)}
        limits = self._of.get(peer)
        if limits is None:
            limits = self._of[peer] = NewsLimits(peer, self._issuers, now)
        if admitter is not None:
            limits.issuer = admitter
        return limits
