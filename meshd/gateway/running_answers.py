"""The answers under way: how many there are, and the end of all of them when this node stops."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from meshd.gateway.failure import Failure, HttpRefusal


class RunningAnswers:
    """Each runs within `until_stopped`."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()
        self._why = ""

    def __len__(self) -> int:
        return len(self._limits)

    def end_all(self, why: str) -> None:
        """End every answer with an error that says `why`, and refuse later ones."""
        self._why = why
        now = asyncio.get_running_loop().time()
        for limit in tuple(self._limits):
            limit.reschedule(now)

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """Run until `end_all`, which turns into HttpRefusal."""
        if self._why:
            raise HttpRefusal(self._failure())
        try:
            async with asyncio.timeout(None) as limit:
                self._limits.add(limit)
                try:
                    yield
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            raise HttpRefusal(self._failure()) from error

    def _failure(self) -> Failure:
        return Failure(503, self._why, type="unavailable_error", code="stopping", retry_after=5)
