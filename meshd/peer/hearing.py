"""How much of a member's news is listened to: what it costs to check them, and how many do not hold.

It is kept for a member, not for a stream or a session: a new one is no new start.
"""

import asyncio

from meshd.base import log
from meshd.base.errors import RemoteProtocolError
from meshd.base.shares import COMPARED, NEWS_CHECKS, NEWS_FAULTS
from meshd.identity.keys import PeerId

NEW_COST = 1.0  # a statement whose signatures are checked
NEW_BAN_COST = 5.0  # one that is written to the disk before it is acted on, too
KNOWN_COST = 0.1  # one that is known: a hash
MANY = 64  # members that are remembered before those that owe nothing are forgotten
LOG = log.get("peer")


class Hearing:
    """One member's."""

    def __init__(self, peer: PeerId, now: float) -> None:
        self._peer = peer
        self._checks = NEWS_CHECKS.bucket(now)
        self._faults = NEWS_FAULTS.bucket(now)
        self._compared = COMPARED.bucket(now)
        self.checked = 0.0  # what its news have cost, in all

    async def pause(self, cost: float) -> None:
        """Let others have their turn, and wait while the member has told too much."""
        self.checked += cost
        await asyncio.sleep(self._checks.take(cost, asyncio.get_running_loop().time()))

    def fault(self, why: str) -> None:
        """It told what does not hold. Raises RemoteProtocolError when that was too often."""
        if not self._faults.spend(1, asyncio.get_running_loop().time()):
            raise RemoteProtocolError(f"too many news that do not hold, the last: {why}", code="news")
        LOG.info("news_dropped", peer=self._peer.short, why=why)

    def compares(self, now: float) -> bool:
        """May it have another answer to its hashes? That may be everything there is."""
        return self._compared.spend(1, now)

    def clear(self, now: float) -> bool:
        """Nothing is owed."""
        return self._checks.full(now) and self._faults.full(now) and self._compared.full(now)


class Hearings:
    """Those of all members that owe something."""

    def __init__(self) -> None:
        self._of: dict[PeerId, Hearing] = {}

    def of(self, peer: PeerId, now: float) -> Hearing:
        """The same one for as long as it owes something."""
        if len(self._of) >= MANY:
            self._of = {one: hearing for one, hearing in self._of.items() if not hearing.clear(now)}
        return self._of.setdefault(peer, Hearing(peer, now))
