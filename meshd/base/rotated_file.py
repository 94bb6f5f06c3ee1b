"""A log file of bounded size, and the one before it: for meshd's own log and for what children print."""

import os
from collections.abc import Callable
from pathlib import Path


class RotatedFile:
    """A file (0600: it may hold prompts) of at most `most` bytes; a full one becomes `NAME.1`.

    A full disk or a folder that has gone costs lines, never the program: `on_lost` hears of the first one.
    """

    def __init__(self, path: Path, *, most: int, on_lost: Callable[[OSError], object] | None = None) -> None:
        self._path = path
        self._most = most
        self._on_lost = on_lost
        self._fd = -1
        self._size = 0
        self._losing = False

    def open(self) -> None:
        """Make the file and its folder (0700) if need be. Raises OSError; `write` does it without."""
        if self._fd < 0:
            _make_private(self._path.parent)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self._path, flags, 0o600)
            self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        """Append `data`, whole lines; alone in the file when it is longer than that may be."""
        try:
            self.open()
            if self._size and self._size + len(data) > self._most:
                self.close()
                self._path.replace(self._path.with_name(self._path.name + ".1"))
                self.open()
            self._size += os.write(self._fd, data)
            self._losing = False
        except OSError as error:
            self.close()
            if self._on_lost is not None and not self._losing:
                self._on_lost(error)
            self._losing = True

    def close(self) -> None:
        """Idempotent; a later write opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _make_private(folder: Path) -> None:
    # not mkdir(parents=True): it would leave a home that it makes on the way open to others
    for one in reversed((folder, *folder.parents)):
        if not one.is_dir():
            one.mkdir(mode=0o700, exist_ok=True)
