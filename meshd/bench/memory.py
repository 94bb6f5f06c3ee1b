"""Keep memory at hand for the start of a load.

A virtual machine that reports its free pages loses them to its host two seconds later, and has to fetch each
again: 2 ms per MB on the machine of docs/lab/performance.md, which is twice the rest of a load. On such
machines some memory is held and released the moment llama-server starts, for stock and meshd alike.
"""

import asyncio
import mmap
import sys
from pathlib import Path

from meshd.base.tasks import in_thread

AT_HAND = 512 << 20
SAMPLE_SECONDS = 0.004
_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
_LARGEST_ORDER = 20  # beyond every kernel's; what is not set is larger, or negative


def is_lent() -> bool:
    """Return True if this machine reports its free pages to a host (Linux, mm/page_reporting.c)."""
    try:
        return 0 < int(_ORDER.read_text(encoding="ascii")) < _LARGEST_ORDER
    except (OSError, ValueError):
        return False


async def take_memory() -> mmap.mmap | None:
    """Allocate memory to hold until a load begins; None if free pages are not reported."""
    return await in_thread(_take) if is_lent() else None


def _take() -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if sys.platform == "linux":
        flags |= mmap.MAP_POPULATE
    return mmap.mmap(-1, AT_HAND, flags=flags)


async def give_back(held: mmap.mmap | None, place: Path) -> None:
    """Release the memory when llama-server makes its socket at `place`, which is before it loads."""
    if held is None:
        return
    while not place.exists():  # noqa: ASYNC110, ASYNC240 - another program makes it; a look takes microseconds
        await asyncio.sleep(SAMPLE_SECONDS)
    await in_thread(held.close)
