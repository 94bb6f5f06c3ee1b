"""Pauses connections that owe bandwidth: one task for all of them."""

import asyncio
import heapq
import itertools
from collections.abc import Callable


class Throttle:
    """`rest(seconds, wake)` calls `wake` that much later, while `serve` runs."""

    def __init__(self) -> None:
        self._resting: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._sooner = asyncio.Event()

    def __len__(self) -> int:
        return len(self._resting)

    def rest(self, seconds: float, wake: Callable[[], None]) -> None:
        """Call `wake`, which must not raise, after `seconds`."""
        at = asyncio.get_running_loop().time() + seconds
        heapq.heappush(self._resting, (at, next(self._numbers), wake))
        if self._resting[0][0] == at:
            self._sooner.set()

    async def serve(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._sooner.clear()
            while self._resting and self._resting[0][0] <= loop.time():
                heapq.heappop(self._resting)[2]()
            until = self._resting[0][0] if self._resting else None
            try:
                async with asyncio.timeout_at(until):
                    await self._sooner.wait()
            except TimeoutError:
                continue
