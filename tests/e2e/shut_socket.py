"""Shuts a socket of another process down, as if what is between its two ends were gone: both see an end.

With pidfd_getfd(2): Linux 5.6, and whoever may trace that process.
"""

import ctypes
import os
import socket
import sys
from contextlib import closing
from functools import cache

_PIDFD_GETFD = 438  # on every architecture


@cache
def skip_reason() -> str:
    """Why this cannot be done here; empty when it can."""
    return "" if sys.platform == "linux" and os.geteuid() == 0 else "needs root on Linux"


def shut(pid: int, descriptor: int) -> None:
    """Both directions of the socket that `pid` has at this number. Raises OSError."""
    with closing(socket.socket(fileno=_taken(pid, descriptor))) as end:
        end.shutdown(socket.SHUT_RDWR)


def _taken(pid: int, descriptor: int) -> int:
    """Our own descriptor of it; the caller owns it."""
    if sys.platform == "linux":
        process = os.pidfd_open(pid)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            ours: int = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
            if ours < 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            return ours
        finally:
            os.close(process)
    else:
        raise OSError("needs Linux")
