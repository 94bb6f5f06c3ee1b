"""One timer of the event loop with an owner: set at will, cheaply, and cancelled with its owner.

A session moves its next timeout with nearly every message. Waking a task for each would cost more than the
message; a handle of the loop costs a few microseconds.
"""

import asyncio
from collections.abc import Callable


class Alarm:
    """Calls `ring` at the time that was set last. `run` must be running for anything to happen."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self.at: float | None = None  # loop time in seconds at which it rings; None: it does not
        self._handle: asyncio.TimerHandle | None = None
        self._failed: asyncio.Future[None] | None = None  # while `run` runs

    def set(self, at: float | None) -> None:
        """Ring at loop time `at`, instead of when it would have."""
        if at == self.at and self._handle is not None:
            return
        self.at = at
        self._drop()
        if at is not None and self._failed is not None:
            self._handle = self._failed.get_loop().call_at(at, self._fired)

    async def run(self) -> None:
        """Own the timer until cancelled. Raises what `ring` raised."""
        self._failed = asyncio.get_running_loop().create_future()
        self.set(self.at)
        try:
            await self._failed
        finally:
            self._failed = None
            self._drop()

    def _fired(self) -> None:
        """Rings here and now: a turn of the event loop more, to wake a task, would cost as much again."""
        self._handle = self.at = None
        try:
            self._ring()
        except Exception as error:
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)  # which `run` raises
                return
            raise

    def _drop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
