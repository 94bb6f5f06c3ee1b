"""Whether the model is loaded again because a worker has come, or is back: at a quiet moment, once for each.

A load costs seconds to minutes and pauses nobody's answer, so it waits until nobody asks. A worker that was
there already, and was left out, is not taken in: its time comes with the next load.
"""

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol

from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus
from meshd.role.head.run_end import End

UNASKED_SECONDS = 15.0  # without a request
SETTLED_SECONDS = 10.0  # of a connection: one that ends at once is no help
_LOOK_SECONDS = 1.0


class ApiActivity:
    """Since when nobody asks; `now` in loop time."""

    def __init__(self) -> None:
        self._since: float | None = -math.inf

    def requests(self, active: int, now: float) -> None:
        """So many are under way."""
        self._since = now if active == 0 else None

    def is_quiet(self, now: float) -> bool:
        return self._since is not None and now - self._since >= UNASKED_SECONDS


def arrived(
    able: Iterable[PeerStatus], used: Collection[PeerId], *, began: float, now: float
) -> PeerStatus | None:
    """Of the workers that may be asked one that has come since the load began, and stays. Pure."""
    for peer in able:
        is_new = peer.peer not in used and peer.since > began
        if is_new and now - peer.since >= SETTLED_SECONDS:
            return peer
    return None


class TakingLife(Protocol):
    """One life of the model (role/head/model_run.py)."""

    end: End
    loaded: bool
    replaced: bool
    """It ends because a better one is to begin."""

    @property
    def workers(self) -> Sequence[PeerId]:
        """Those that take part."""
        ...


async def take_in(life: TakingLife, activity: ApiActivity, able: Callable[[], Iterable[PeerStatus]]) -> None:
    """End `life` at a quiet moment when somebody has come whom `able` gives."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if not life.loaded or not activity.is_quiet(loop.time()):
            continue
        if (peer := arrived(able(), life.workers, began=began, now=loop.time())) is not None:
            life.replaced = True
            life.end.say(f"worker {peer.name} is here: the model is loaded again with it")
            return
