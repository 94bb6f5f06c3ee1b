"""Settings of the C library's allocator (glibc): keep freed memory, share one arena between threads."""

import ctypes
import sys
from contextlib import suppress

KEPT_BYTES = 16 << 20  # freed, and not given back
_CHUNK_BYTES = 1 << 20  # larger ones are mapped by themselves, and given back at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)


def keep_freed_memory() -> None:
    """Make glibc keep freed chunks, for a process that copies some hundred kilobytes at a time all day.

    By default glibc gives such a chunk back to the kernel when it is freed, and each page of the next one is
    a page fault and 4 KiB of zeros: 5,000 to 220,000 faults in a daemon that passed on 2 GB, and 800 to 2,800
    with this (the daemons of `tests.bench.hop`, 2 cores of an AMD EPYC, 2026-11-23). And a thread would get
    memory of its own, a few hundred kilobytes of which stay when it waits; it allocates while it holds
    Python's lock, so it may as well share. Elsewhere nothing is done.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_MMAP_THRESHOLD, _CHUNK_BYTES)
            mallopt(_ARENA_MAX, 1)
