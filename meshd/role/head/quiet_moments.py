"""Whether the model is loaded again because a worker has come, is back, or is paused, or because other drafts
gain more (speculation.py): when nobody asks.

A load costs seconds to minutes, and pauses answers. So a worker that comes is taken in after a while without
a request, once for each arrival, and one whose user is about to take it away is let go when no answer is
open. A worker that was there already, and was left out, is no arrival: its time comes with the next load.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus
from meshd.role.head.run_end import End

UNASKED_SECONDS = 15.0
SETTLED_SECONDS = 10.0  # of a connection: one that ends at once is no help
_LOOK_SECONDS = 1.0


class WatchedLife(Protocol):
    """One life of the model (role/head/model_run.py)."""

    end: End
    loaded: bool
    replaced: bool
    """It ends because another one is to begin."""

    @property
    def workers(self) -> Sequence[PeerId]:
        """Those that take part."""
        ...


Look = Callable[[], Iterable[PeerStatus]]


class QuietMoments:
    """Of one head. `peers`: all; `wanted`: workers for which the model would be loaded again.

    `other_drafts`: why it would be for another speculation, given the time; empty: it would not.
    """

    def __init__(
        self, peers: Look, wanted: Look, other_drafts: Callable[[float], str] = lambda _now: ""
    ) -> None:
        self._peers = peers
        self._wanted = wanted
        self._other_drafts = other_drafts
        self._idle_since: float | None = -math.inf
        self._paused: dict[PeerId, float] = {}  # when they were seen so the last time

    def requests(self, active: int, now: float) -> None:
        """So many are under way."""
        self._idle_since = now if active == 0 else None

    def idle_seconds(self, now: float) -> float:
        """For how long nobody has asked."""
        return now - self._idle_since if self._idle_since is not None else 0.0

    async def watch(self, life: WatchedLife) -> None:
        """End `life` when a better one is to begin."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            idle = self.idle_seconds(now := loop.time())
            self._look_for_paused(now)
            if not life.loaded or not idle:
                continue
            if (peer := leaving(self._peers(), life.workers)) is not None:
                why = f"worker {peer.name} is paused: the model is loaded without it"
            elif idle >= UNASKED_SECONDS and (
                peer := arrived(self._wanted(), life.workers, self._paused, began=began, now=now)
            ):
                why = f"worker {peer.name} is here: the model is loaded again with it"
            elif idle >= UNASKED_SECONDS and (drafts := self._other_drafts(now)):
                why = drafts
            else:
                continue
            replace_life(life, why)
            return

    def _look_for_paused(self, now: float) -> None:
        peers = list(self._peers())
        known = {peer.peer for peer in peers}
        self._paused = {peer: at for peer, at in self._paused.items() if peer in known}
        self._paused |= {peer.peer: now for peer in peers if peer.paused}


def replace_life(life: WatchedLife, why: str) -> None:
    """End it, for another one is to begin."""
    life.replaced = True
    life.end.say(why)


def leaving(peers: Iterable[PeerStatus], used: Collection[PeerId]) -> PeerStatus | None:
    """One that is used, and whose user has paused it. Pure."""
    return next((peer for peer in peers if peer.peer in used and peer.paused), None)


def arrived(
    able: Iterable[PeerStatus],
    used: Collection[PeerId],
    paused: Mapping[PeerId, float],
    *,
    began: float,
    now: float,
) -> PeerStatus | None:
    """Of the workers that may be asked one that has come since the load began, and stays. Pure.

    `paused`: until when they were.
    """
    for peer in able:
        since = max(peer.since, paused.get(peer.peer, -math.inf))
        if peer.peer not in used and since > began and now - since >= SETTLED_SECONDS:
            return peer
    return None
