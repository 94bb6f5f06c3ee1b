"""A log file of bounded size, and the one before it: for meshd's own log and for what children print."""

import errno
import os
from collections.abc import Callable
from pathlib import Path


class RotatedFile:
    """A file (0600: it may hold prompts) of at most `most` bytes; a full one becomes `NAME.1`.

    A full disk or a folder that has gone costs lines, never the program: `on_lost` hears of the first one.
    """

    def __init__(self, path: Path, *, most: int, on_lost: Callable[[OSError], object] | None = None) -> None:
        self.path = path
        self._most = most
        self._on_lost = on_lost
        self._fd = -1
        self._size = 0
        self.trouble = ""  # why nothing can be written now
        self._lost = 0  # writes, since `take_lost` told

    def open(self) -> None:
        """Create the file and its folder (0700) if needed. Raises OSError; `write` opens it without
        raising.
        """
        if self._fd < 0:
            _make_private(self.path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
            self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append whole lines; `data` larger than the limit gets a file of its own."""
        try:
            self.open()
            if self._size and self._size + len(data) > self._most:
                self.close()
                self.path.replace(self.path.with_name(self.path.name + ".1"))
                self.open()
            self._append(data)
        except OSError as error:
            self.close()
            first, self.trouble = not self.trouble, (error.strerror or type(error).__name__).lower()
            self._lost += 1
            if self._on_lost is not None and first:
                self._on_lost(error)

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        if written < len(data):  # the disk became full in the middle of a line
            os.ftruncate(self._fd, self._size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += written
        self.trouble = ""

    def take_lost(self) -> int:
        """Return how many writes were lost, once the file can be written again; 0 before and after."""
        if self.trouble:
            return 0
        lost, self._lost = self._lost, 0
        return lost

    def close(self) -> None:
        """Close the file. Idempotent; a later write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _make_private(folder: Path) -> None:
    # not mkdir(parents=True): it would leave a home that it makes on the way open to others
    for parent in reversed((folder, *folder.parents)):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
