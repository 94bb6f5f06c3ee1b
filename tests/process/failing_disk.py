"""A disk that does not take chosen files, or does not give them: a stage of their use fails.

Making a folder counts as opening, what changes a file's size or times as writing. `OPEN_TO_READ` stands
beside the stages of writing: what is read has no others, for its bytes come with the checksum or not at all.
"""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, AnyStr
from unittest import mock

from meshd.base.files import NEW_PREFIX

ERRNOS = (errno.ENOSPC, errno.EROFS, errno.EMFILE, errno.EIO)
STAGES = ("open", "write", "sync", "replace")
OPEN_TO_READ = "open to read"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

Path_ = str | os.PathLike[str]


class FailingDisk:
    """`hits` counts what failed. `concerned` says of a path whether it is one of those files."""

    def __init__(self, concerned: Callable[[Path], bool], number: int, stage: str) -> None:
        self.hits = 0
        self._concerned = concerned
        self.number = number
        self._stage = stage
        self._files: dict[int, Path] = {}
        self._open, self._fdopen, self._write = os.open, os.fdopen, os.write
        self._fsync, self._replace, self._close = os.fsync, os.replace, os.close
        self._pwrite, self._sendfile, self._truncate = os.pwrite, os.sendfile, os.ftruncate
        self._utime, self._mkdir = os.utime, os.mkdir
        self._io_open = io.open

    def _fail(self, stage: str) -> None:
        if stage == self._stage:
            self.hits += 1
            raise OSError(self.number, os.strerror(self.number))

    def open(self, path: Path_, flags: int, mode: int = 0o777, **more: int) -> int:
        """As os.open."""
        named = path
        writes = bool(flags & _WRITES)
        if sys.platform == "linux" and flags & os.O_TMPFILE == os.O_TMPFILE:
            # a file without a name in this folder
            path = Path(path) / NEW_PREFIX
        if self._concerned(Path(path)):
            self._fail("open" if writes else OPEN_TO_READ)
        descriptor = self._open(named, flags, mode, **more)
        self._files.pop(descriptor, None)  # of one that a file object closed
        if writes and self._concerned(Path(path)):
            self._files[descriptor] = Path(path)
        return descriptor

    def close(self, descriptor: int) -> None:
        """As os.close."""
        self._files.pop(descriptor, None)
        self._close(descriptor)

    def fdopen(self, descriptor: int, mode: str = "r", **more: bool) -> IO[bytes]:
        """As os.fdopen; half of what is written arrives before a write fails."""
        file: IO[bytes] = self._fdopen(descriptor, mode, **more)  # type: ignore[call-overload]
        if descriptor not in self._files:
            return file
        self._halve(file)
        return file

    def _halve(self, file: IO[AnyStr]) -> None:
        """Half of what is written to it arrives before a write fails."""
        plain = file.write

        def write(data: AnyStr) -> int:
            if self._stage == "write":
                plain(data[: len(data) // 2])
                file.flush()
            self._fail("write")
            return plain(data)

        file.write = write  # type: ignore[method-assign,assignment]

    def write(self, descriptor: int, data: bytes) -> int:
        """As os.write; a full disk takes half first."""
        if descriptor in self._files:
            if self._stage == "write" and self.number == errno.ENOSPC:
                self.hits += 1
                return self._write(descriptor, data[: len(data) // 2])
            self._fail("write")
        return self._write(descriptor, data)

    def pwrite(self, descriptor: int, data: bytes, offset: int) -> int:
        """As os.pwrite; half of it arrives before it fails."""
        if descriptor in self._files and self._stage == "write":
            self._pwrite(descriptor, data[: len(data) // 2], offset)
            self._fail("write")
        return self._pwrite(descriptor, data, offset)

    def sendfile(self, to: int, source: int, offset: int, count: int) -> int:
        """As os.sendfile, by which shutil copies; half of it arrives before it fails."""
        if to in self._files and self._stage == "write":
            self._sendfile(to, source, offset, os.fstat(source).st_size // 2)
            self._fail("write")
        return self._sendfile(to, source, offset, count)

    def ftruncate(self, descriptor: int, length: int) -> None:
        """As os.ftruncate. To make a file shorter is always possible."""
        if descriptor in self._files and length > os.fstat(descriptor).st_size:
            self._fail("write")
        self._truncate(descriptor, length)

    def utime(self, path: Path_ | int, *times: object, **more: object) -> None:
        """As os.utime."""
        if not isinstance(path, int) and self._concerned(Path(path)) and Path(path).exists():
            self._fail("write")
        self._utime(path, *times, **more)  # type: ignore[arg-type]

    def mkdir(self, path: Path_, mode: int = 0o777) -> None:
        """As os.mkdir."""
        if self._concerned(Path(path)) and not Path(path).exists() and Path(path).parent.exists():
            self._fail("open")
        self._mkdir(path, mode)

    def fsync(self, descriptor: int) -> None:
        """As os.fsync."""
        if descriptor in self._files:
            self._fail("sync")
        self._fsync(descriptor)

    def replace(self, source: Path_, target: Path_) -> None:
        """As os.replace."""
        if self._concerned(Path(target)):
            self._fail("replace")
        self._replace(source, target)

    def io_open(self, file: Path_ | int, mode: str = "r", *args: object, **more: object) -> IO[str]:
        """As io.open, by which pathlib and shutil open; for itself it opens by none of the others."""
        writes = not isinstance(file, int) and mode[0] in "wax" and self._concerned(Path(file))
        if writes:
            self._fail("open")
        elif not isinstance(file, int) and self._concerned(Path(file)):
            self._fail(OPEN_TO_READ)
        opened: IO[str] = self._io_open(file, mode, *args, **more)  # type: ignore[call-overload]
        if not isinstance(file, int):
            self._files.pop(opened.fileno(), None)  # of one that a file object closed
        if writes:
            self._files[opened.fileno()] = Path(str(file))
            self._halve(opened)
        return opened


@contextmanager
def failing(concerned: Callable[[Path], bool], number: int, stage: str) -> Iterator[FailingDisk]:
    """While the block runs each `stage` of a concerned file fails with errno `number`."""
    disk = FailingDisk(concerned, number, stage)
    with (
        mock.patch("os.open", disk.open),
        mock.patch("os.close", disk.close),
        mock.patch("os.fdopen", disk.fdopen),
        mock.patch("os.write", disk.write),
        mock.patch("os.fsync", disk.fsync),
        mock.patch("os.pwrite", disk.pwrite),
        mock.patch("os.sendfile", disk.sendfile),
        mock.patch("os.ftruncate", disk.ftruncate),
        mock.patch("os.utime", disk.utime),
        mock.patch("os.mkdir", disk.mkdir),
        mock.patch("os.replace", disk.replace),
        mock.patch("os.rename", disk.replace),
        mock.patch("io.open", disk.io_open),
        mock.patch("builtins.open", disk.io_open),
    ):
        yield disk


def one_file(name: str) -> Callable[[Path], bool]:
    """It, what it is written as before it is replaced, and its older part; of `*.END` all that end so."""

    def concerned(path: Path) -> bool:
        if name.startswith("*"):
            return path.name.endswith(name[1:])
        fresh = name.endswith(".pid") and path.name.startswith(NEW_PREFIX)  # base/files.py
        return fresh or path.name in (name, f"{name}.1") or path.name.startswith((f".{name}.", f"{name}."))

    return concerned


def below(folder: Path) -> Callable[[Path], bool]:
    """Every file there."""
    return lambda path: folder in path.parents
