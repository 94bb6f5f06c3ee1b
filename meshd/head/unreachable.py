"""Whether a worker in use is out of reach for so long that clients should hear of it.

A link that is lost comes back within seconds, mostly, and nobody needs to know. Answers under way wait on
for the grace; new requests would wait behind them. A worker that is back for moments only would use up no
grace, and keep the model degraded for ever: so its gaps count together, until it has made up for them.
"""

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from meshd.gateway.interface import Readiness
from meshd.head.blame import Blame
from meshd.head.run_end import End
from meshd.identity.keys import PeerId
from meshd.model.status import ModelState
from meshd.peer.interface import Mesh, PeerState, PeerStatus

SILENT_SECONDS = 10.0
_LOOK_SECONDS = 1.0
GIVEN_BACK = 4.0  # seconds out of reach that each second within reach makes up for
LATE_SECONDS = 5.0  # one gap of the grace ends the session by itself, which is nearer to the truth


def as_reached(now: Readiness, mesh: Mesh, used: Collection[PeerId]) -> Readiness:
    """`now`; but degraded in place of ready as long as a worker is out of reach, and then ready again.

    A load that waits for such a worker says so.
    """
    if now.state not in (ModelState.READY, ModelState.LOADING) or not used:
        return now
    why = why_degraded(mesh.peers(), used, asyncio.get_running_loop().time())
    if why and now.state is ModelState.LOADING:
        return replace(now, reason=f"{now.reason}; {why}")
    return Readiness(ModelState.DEGRADED, why) if why else now


def why_degraded(peers: Iterable[PeerStatus], used: Collection[PeerId], now: float) -> str:
    """For people, empty while all is well; `now` in loop time."""
    silent = [
        f"no connection to worker {peer.name} for {now - peer.since:.0f} s"
        for peer in peers
        if peer.peer in used and peer.state is PeerState.SUSPENDED and now - peer.since >= SILENT_SECONDS
    ]
    return "; ".join(silent)


class PeerPatience:
    """For how long the workers of one life were out of reach, in sum. `now` in loop time."""

    def __init__(self, grace: float, now: float) -> None:
        self._grace = grace
        self._at = now
        self._away: dict[PeerId, float] = {}

    def look(self, peers: Iterable[PeerStatus], used: Collection[PeerId], now: float) -> PeerStatus | None:
        """To be called again and again; the worker that is not waited for any more."""
        passed, self._at = now - self._at, now
        for peer in peers:
            if peer.peer not in used:
                continue
            change = passed if peer.state is PeerState.SUSPENDED else -GIVEN_BACK * passed
            away = self._away[peer.peer] = max(0.0, self._away.get(peer.peer, 0.0) + change)
            if away >= self._grace + LATE_SECONDS:
                return peer
        return None


class ModelLife(Protocol):
    """One life of the model (head/model_run.py)."""

    blame: Blame
    end: End

    @property
    def workers(self) -> Sequence[PeerId]:
        """Those that take part."""
        ...


async def give_up(life: ModelLife, mesh: Mesh, grace: float) -> None:
    """End `life` for a worker that was out of reach for too long in sum, when there is one."""
    loop = asyncio.get_running_loop()
    patience = PeerPatience(grace, loop.time())
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        worker = patience.look(mesh.peers(), life.workers, loop.time())
        if worker is not None:
            why = f"no lasting connection, {grace:.0f} s without one in total"
            life.blame.given_up(worker.peer, why)
            life.end.say(f"worker {worker.name} is lost: {why}")
            return
