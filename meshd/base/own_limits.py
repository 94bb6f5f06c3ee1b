"""Change the limits that this process was started with: more open files, and no core dumps.

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
