"""Whether a worker in use is out of reach for so long that clients should hear of it.

A link that is lost comes back within seconds, mostly, and nobody needs to know. Answers under way wait on
for the grace; whoever asks now would wait behind them.
"""

import asyncio
from collections.abc import Collection, Iterable

from meshd.gateway.interface import ModelState, Readiness
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh, PeerState, PeerStatus

SILENT_SECONDS = 10.0


def as_reached(now: Readiness, mesh: Mesh, used: Collection[PeerId]) -> Readiness:
    """`now`; but degraded in place of ready as long as a worker is out of reach, and then ready again."""
    if now.state is not ModelState.READY:
        return now
    why = why_degraded(mesh.peers(), used, asyncio.get_running_loop().time())
    return Readiness(ModelState.DEGRADED, why) if why else now


def why_degraded(peers: Iterable[PeerStatus], used: Collection[PeerId], now: float) -> str:
    """For people, empty while all is well; `now` in loop time."""
    silent = [
        f"no connection to worker {peer.name} for {now - peer.since:.0f} s"
        for peer in peers
        if peer.peer in used and peer.state is PeerState.SUSPENDED and now - peer.since >= SILENT_SECONDS
    ]
    return "; ".join(silent)
