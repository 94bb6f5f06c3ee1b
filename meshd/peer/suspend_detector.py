"""Notices that this node slept: suspended with its machine, or stopped (SIGSTOP) and continued.

In a suspend monotonic time stands still, so that nothing that counts seconds knows of it: the clock since
boot runs on, and their difference is the sleep. A stopped process sees monotonic time jump.
"""

import asyncio
import time
from collections.abc import Callable

CLOCK_LOOK_SECONDS = 2.0  # between two looks at the clocks
SLEPT_LEAST = 5.0  # seconds; a busy machine is late by less


def boot_seconds() -> float:
    """Seconds since boot, suspends included, where the system tells (Linux); else without them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


async def watch_sleep(woke: Callable[[float], None], *, boot: Callable[[], float] = boot_seconds) -> None:
    """Call `woke` with the seconds slept after each sleep of SLEPT_LEAST or more, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        since, booted = loop.time(), boot()
        await asyncio.sleep(CLOCK_LOOK_SECONDS)
        ran = loop.time() - since
        slept = max(boot() - booted, ran) - CLOCK_LOOK_SECONDS
        if slept >= SLEPT_LEAST:
            woke(slept)
