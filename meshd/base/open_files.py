"""Raises the limit of open files and connections to the system's maximum.

Links, streams and files are bounded one by one; the soft limit that shells give (256 to 1024) is lower.
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
