"""Open and read files that users name, which may be pipes or devices by mistake: these never end, or hang."""

import errno
import os
import stat
from pathlib import Path


def open_regular(path: Path) -> int:
    """Open a regular file for reading and return the descriptor. Raises OSError, also for any other kind."""
    # O_NONBLOCK: to open a FIFO would wait for its writer
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
            raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """Read at most `most` bytes of a regular file. Raises OSError, also for any other kind."""
    with os.fdopen(open_regular(path), "rb") as file:
        return file.read(most)
