"""Settings of this process: more open files, no core dumps, and what the C library does with freed memory.

Links, streams and files are bounded one by one; the soft limit of open files that shells give (256 to 1024)
is lower. A core dump would hold keys, tokens and prompts.
"""

import resource
import sys
from contextlib import suppress

_LIMITS_TRIED = (
    1 << 20,
    65_536,
    10_240,
)  # the last: what macOS takes although it says that there is no limit
_before: int | None = None  # the soft limit that this process was given
KEPT_BYTES = 16 << 20  # freed, and not given back
_CHUNK_BYTES = 1 << 20  # larger ones are mapped by themselves, and given back at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)


def forbid_core_dumps() -> None:
    """Lower the soft limit of core dumps for this process and its later children; the hard one stays.

    With a limit of 0 Linux still pipes the dump to a program that core_pattern names (core(5)); a limit of 1
    prevents that as well (fs/coredump.c), and is less than any core file needs. The process stays dumpable
    (prctl(2)) otherwise: its files in /proc would belong to root, so that even its own user could not see
    which process has its ports, and that user can read the key files anyway.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    most = 1 if sys.platform == "linux" and hard != 0 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (most, hard))


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns what it is now."""
    global _before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _before is None:
        _before = soft
    for most in _LIMITS_TRIED:
        wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft >= wanted:
            break
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def lower_for(pid: int) -> None:
    """Give a child the soft limit that this process was given: a program may not be made for more.

    Where the system cannot do that (macOS) it keeps ours.
    """
    if sys.platform == "linux" and _before is not None:
        with suppress(OSError, ValueError):  # it has ended already
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_before, hard))


def keep_freed_memory() -> None:
    """Make glibc keep freed chunks, for a process that copies some hundred kilobytes at a time all day.

    By default glibc gives such a chunk back to the kernel when it is freed, and each page of the next one is
    a page fault and 4 KiB of zeros: 5,000 to 220,000 faults in a daemon that passed on 2 GB, and 800 to 2,800
    with this (the daemons of `tests.bench.hop`, 2 cores of an AMD EPYC, 2026-11-23). And a thread would get
    memory of its own, a few hundred kilobytes of which stay when it waits; it allocates while it holds
    Python's lock, so it may as well share. Elsewhere nothing is done.
    """
    if sys.platform == "linux":
        import ctypes  # verbs start without it

        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_MMAP_THRESHOLD, _CHUNK_BYTES)
            mallopt(_ARENA_MAX, 1)
