"""Notice that this machine, or this process, has slept.

During a suspend the monotonic clock stops, so code that counts seconds does not notice. The clock
since boot continues, and their difference is the sleep. A stopped process (SIGSTOP) sees monotonic time jump.
"""

import asyncio
import time
from collections.abc import Callable

CLOCK_LOOK_SECONDS = 2.0  # between two checks of the clocks
SLEPT_LEAST = 5.0  # seconds; a busy machine is late by less


def boot_seconds() -> float:
    """Return the seconds since boot, including suspends if the system tells (Linux)."""
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
