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
    assert sys.platform == "linux"
    process = os.pidfd_open(pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        ours = libc.syscall(_PIDFD_GETFD, process, descriptor, 0)
        if ours < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(process)
    with closing(socket.socket(fileno=ours)) as end:
        end.shutdown(socket.SHUT_RDWR)
