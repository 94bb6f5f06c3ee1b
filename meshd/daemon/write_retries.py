"""Retry failed writes with back-off, as long as the daemon runs."""

import asyncio

from meshd.base.backoff import Backoff
from meshd.base.tasks import in_thread
from meshd.identity.keeping import Keeping

_RETRY = Backoff(first=1.0, factor=2.0, most=30.0, jitter=0.0)


async def write_again(keeping: Keeping) -> None:
    """Retry until cancelled, and then once more, because unwritten state is lost with the process."""
    tries = 0
    try:
        while True:
            await asyncio.sleep(_RETRY.delay(tries, 0.0))
            if keeping.waiting:
                tries = 0 if await in_thread(keeping.retry) else tries + 1
    finally:
        keeping.retry()
