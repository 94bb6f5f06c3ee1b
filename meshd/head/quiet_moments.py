"""Decide whether the model is loaded again, when nobody asks: because a worker has come, is back, or is
paused, because other drafts gain more (speculation.py), or because another split does (late_measuring.py).

A load costs seconds to minutes, and pauses answers. So a worker that comes is taken in after a while without
a request, once for each arrival, and one whose user is about to take it away is let go when no answer is
open. A worker that was there already, and was left out, is no arrival: its time comes with the next load.

Where answers overlap, no such moment comes by itself. Then the gateway is asked to begin no more of them: at
once for a worker whose user waits, for one that has come when LONG_ASKED_SECONDS have passed. An answer can
take an hour, which is too long for the others: for one that has come it lasts HELD_SECONDS at most, and is
tried again later.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

from meshd.head.run_end import End
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus

UNASKED_SECONDS = 15.0
SETTLED_SECONDS = 10.0  # of a connection: one that ends at once is no help
LONG_ASKED_SECONDS = 600.0  # since a worker has come
HELD_SECONDS = 300.0
_LOOK_SECONDS = 1.0


class WatchedLife(Protocol):
    """One life of the model (head/model_run.py)."""

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

    `otherwise`: why it would be for other drafts or another split, given the time; empty: it would not.
    """

    def __init__(
        self, peers: Look, wanted: Look, otherwise: Callable[[float], str] = lambda _now: ""
    ) -> None:
        self._peers = peers
        self._wanted = wanted
        self._otherwise = otherwise
        self._idle_since: float | None = -math.inf
        self._active = 0
        self._asked = asyncio.Event()  # requests are under way
        self._waiting = 0
        self._why_held = ""
        self._paused: dict[PeerId, float] = {}  # when they were seen so the last time

    def requests(self, active: int, now: float) -> None:
        """So many are under way."""
        self._idle_since = now if active == 0 else None
        self._active = active
        if active:
            self._asked.set()
        else:
            self._asked.clear()

    async def until_asked(self) -> None:
        """Wait for a request; return at once while one is under way."""
        await self._asked.wait()

    def queued(self, waiting: int) -> None:
        """So many of them wait for their turn."""
        self._waiting = waiting

    @property
    def holds_turns(self) -> str:
        """Why no more answers are to begin now; empty: they are."""
        return self._why_held

    def idle_seconds(self, now: float) -> float:
        """For how long nobody has asked."""
        return now - self._idle_since if self._idle_since is not None else 0.0

    async def watch(self, life: WatchedLife) -> None:
        """End `life` when a better one is to begin."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._why_held = ""
        try:
            while True:
                await asyncio.sleep(_LOOK_SECONDS)
                now = loop.time()
                self._look_for_paused(now)
                if life.loaded and (why := self._why_now(life, began, now)):
                    replace_life(life, why)
                    return
        finally:
            if not life.replaced:  # else none begins before the next life
                self._why_held = ""

    def _why_now(self, life: WatchedLife, began: float, now: float) -> str:
        """Why `life` is to end now; empty: it is not."""
        is_quiet, computes = self.idle_seconds(now) >= UNASKED_SECONDS, self._active > self._waiting
        if (peer := leaving(self._peers(), life.workers)) is not None:
            self._why_held = f"worker {peer.name} is paused: the model is loaded without it"
            return "" if computes else self._why_held
        found = arrived(self._wanted(), life.workers, self._paused, began=began, now=now)
        if found is None:
            self._why_held = ""
            return self._otherwise(now) if is_quiet else ""
        peer, since = found
        why = f"worker {peer.name} is here: the model is loaded again with it"
        self._why_held = why if is_held(now - since) else ""
        return why if is_quiet or (self._why_held and not computes) else ""

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
) -> tuple[PeerStatus, float] | None:
    """Of the workers that may be asked one that has come since the load began, and stays; and when. Pure.

    `paused`: until when they were.
    """
    for peer in able:
        since = max(peer.since, paused.get(peer.peer, -math.inf))
        if peer.peer not in used and since > began and now - since >= SETTLED_SECONDS:
            return peer, since
    return None


def is_held(waited: float) -> bool:
    """Whether no answer begins for the sake of a worker that came so many seconds ago. Pure."""
    return waited % (LONG_ASKED_SECONDS + HELD_SECONDS) >= LONG_ASKED_SECONDS
