"""Whether a request whose llama-server was lost is sent once more: when the model is ready again."""

import asyncio

from meshd.gateway.interface import Readiness, Upstream
from meshd.model.status import ModelState

_REPEATS = 3  # of a request: one that ends llama-server shall not end it for ever
_LOOK_SECONDS = 0.1


class Repeats:
    """Of one request; it waits for at most `seconds` each time. `at_once`: without that, too."""

    def __init__(self, upstream: Upstream, seconds: float, *, at_once: bool = False) -> None:
        self._upstream = upstream
        self._seconds = seconds
        self._left = _REPEATS if seconds > 0 or at_once else 0

    async def allowed(self) -> bool:
        """True when the model is ready; False when it is not in time, or the request was lost too often."""
        if self._left == 0:
            return False
        self._left -= 1
        try:
            async with asyncio.timeout(self._seconds):
                while (now := self._upstream.readiness).state is not ModelState.READY:
                    if _is_hopeless(now):
                        return False
                    await asyncio.sleep(_LOOK_SECONDS)  # nobody tells: states change rarely
        except TimeoutError:
            return False
        return True


def _is_hopeless(now: Readiness) -> bool:
    """Memory comes back with workers; what is unloaded has made room for another model."""
    return now.state is ModelState.UNLOADED or (now.state is ModelState.FAILED and not now.no_room)
