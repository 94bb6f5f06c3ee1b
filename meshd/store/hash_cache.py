"""Hashes of tensors kept between starts, by the state of the file they were read from.

An entry is believed only when size, mtime, ctime, inode and device of the open file are exactly those it was
made for, the tensor table is the same, its own checksum holds and it belongs to this user. A file system that
is mounted again may get another device number (USB, network shares, btrfs, after a restart): if only that
differs, some tensors are read and compared. Anything else is a miss, and a cache that cannot be written is a
slower start, never a failure.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from meshd.base import log
from meshd.base.files import NEW_PREFIX, read_own_file, replace_file
from meshd.model.gguf import Header
from meshd.model.weights_index import FileEntry

MAX_HASHED_FILES = 256  # files; an entry of a large model takes about 100 KB
MAX_ENTRY_BYTES = 16 * 1024 * 1024
_VERSION = "meshd-hashes 1"
_SUFFIX = ".hashes"
_SAMPLE_BYTES = 4 << 20  # read again where the device number has changed
_LONGEST_TICK_NS = 10_000_000  # kernels stamp files with a clock that ticks every 1 to 10 ms
_FINE_TICK_NS = 5 * _LONGEST_TICK_NS
_COARSE_TICK_NS = 2_000_000_000  # FAT and some network shares: two seconds

_log = log.get("store")


@dataclass(frozen=True, slots=True)
class FileState:
    """The state of an open file: two equal ones mean the same bytes, as far as a file system can tell."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    device: int

    @classmethod
    def of(cls, descriptor: int) -> "FileState":
        """Return the state of an open file. Raises OSError."""
        return cls._from(os.fstat(descriptor))

    @classmethod
    def at(cls, path: Path) -> "FileState":
        """Return the state of the file that `path` names now. Raises OSError."""
        return cls._from(path.stat())

    @classmethod
    def _from(cls, result: os.stat_result) -> "FileState":
        return cls(result.st_size, result.st_mtime_ns, result.st_ctime_ns, result.st_ino, result.st_dev)

    @property
    def entry(self) -> FileEntry:
        return FileEntry(self.size, self.mtime_ns, self.ctime_ns, self.inode)

    @property
    def line(self) -> str:
        return f"{self.here} {self.device}"

    @property
    def here(self) -> str:
        """The state without the device: what the file system itself keeps."""
        return f"{self.size} {self.mtime_ns} {self.ctime_ns} {self.inode}"

    def settled_at(self, clock_ns: int) -> bool:
        """Return True if a write after `clock_ns` must have given the file another time.

        A write within one tick of the file system's clock leaves mtime and ctime as they are, so hashes read
        that soon after a change must not be believed later.
        """
        return clock_ns > self._settles_ns

    def seconds_to_settle(self, clock_ns: int) -> float:
        """Return the seconds until `settled_at`, at most two: if those do not do, a clock was set back.

        Includes one tick more, because a sleep of just that long may still see the clock's last tick.
        """
        if self.settled_at(clock_ns):
            return 0.0
        return min(_COARSE_TICK_NS, self._settles_ns + 1 - clock_ns + _LONGEST_TICK_NS) / 1e9

    @property
    def _settles_ns(self) -> int:
        last = max(self.mtime_ns, self.ctime_ns)
        return last + (_FINE_TICK_NS if last % 1_000_000_000 else _COARSE_TICK_NS)


class HashCache:
    """Entries in one folder, `<cache>/weights`. Methods do short file operations and raise nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.reading = asyncio.Lock()  # held while a file is hashed: one at a time, a disk has one head

    @property
    def folder(self) -> Path:
        """The folder of the entries."""
        return self._folder

    def clock_ns(self) -> int | None:
        """Return the file system's present time, by creating a file; None when the folder cannot be written.

        Taken from the file system because that is the clock that stamps files; read it before hashing.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self._folder) as probe:
                return os.fstat(probe.fileno()).st_ctime_ns
        except OSError as error:
            _log.warning("weights_cache_unusable", path=str(self._folder), why=str(error))
            return None

    def load(
        self, state: FileState, header: Header, descriptor: int | None = None
    ) -> tuple[bytes, ...] | None:
        """Return the hashes of the header's tensors, in their order, or None if they are not cached.

        With the file's `descriptor`, an entry of another device number is compared with a sample.
        """
        path = self._path(state)
        try:
            data = read_own_file(path, most=MAX_ENTRY_BYTES)
            found = None if data is None else _decode(data, state, header)
            if found is None:
                return None
            digests, device = found
            if device != state.device:
                if descriptor is None or not _sample_is(descriptor, header, digests):
                    return None
                self.save(state, header, digests)
            with suppress(OSError):  # a disk that takes nothing: it is read all the same
                os.utime(path)  # the least recently used goes first
        except OSError:
            return None
        return digests

    def save(self, state: FileState, header: Header, digests: Sequence[bytes]) -> None:
        """Store hashes; replaces the entry as a whole or not at all."""
        data = _encode(state, header, digests)
        try:
            replace_file(self._path(state), data)
            self._prune()
        except OSError as error:
            _log.warning("weights_cache_not_written", path=str(self._folder), why=str(error))

    def _path(self, state: FileState) -> Path:
        return self._folder / (blake3(state.here.encode()).hexdigest(16) + _SUFFIX)

    def _prune(self) -> None:
        # others are left by writers that were killed (base/files.py)
        kept = [path for path in self._folder.iterdir() if path.name.endswith(_SUFFIX)]
        kept.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in kept[: max(0, len(kept) - MAX_HASHED_FILES)]:
            path.unlink(missing_ok=True)
        stale = [path for path in self._folder.iterdir() if path.name.startswith(NEW_PREFIX)]
        stale.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in stale[:-8]:  # the newest may be another process at work
            path.unlink(missing_ok=True)


def _table_digest(header: Header) -> str:
    whole = blake3()
    for tensor in header.tensors:
        whole.update(
            f"{tensor.kind.number} {tensor.offset} {tensor.size} {tensor.dims} {tensor.name}\n".encode()
        )
    return whole.hexdigest()


def _encode(state: FileState, header: Header, digests: Sequence[bytes]) -> bytes:
    lines = [_VERSION, state.line, _table_digest(header), *(digest.hex() for digest in digests)]
    body = ("\n".join(lines) + "\n").encode()
    return body + f"end {blake3(body).hexdigest()}\n".encode()


def _sample_is(descriptor: int, header: Header, digests: Sequence[bytes]) -> bool:
    """Return True if tensors drawn at random match the entry. Raises OSError."""
    drawn = list(zip(header.tensors, digests, strict=True))
    random.shuffle(drawn)
    left, compared = _SAMPLE_BYTES, 0
    for tensor, digest in drawn:
        if not 0 < tensor.size <= left:
            continue
        left -= tensor.size
        compared += 1
        if blake3(os.pread(descriptor, tensor.size, tensor.offset)).digest() != digest:
            return False
    return compared > 0


def _decode(data: bytes, state: FileState, header: Header) -> tuple[tuple[bytes, ...], int] | None:
    """Return the hashes, and the device number of the file that they were read from; None for a bad entry."""
    body, _, checksum = data.rpartition(b"end ")
    if checksum.strip() != blake3(body).hexdigest().encode():
        return None
    lines = body.decode("ascii", "replace").splitlines()
    if len(lines) != 3 + len(header.tensors) or [lines[0], lines[2]] != [_VERSION, _table_digest(header)]:
        return None
    here, _, device = lines[1].rpartition(" ")
    try:
        return (tuple(bytes.fromhex(line) for line in lines[3:]), int(device)) if here == state.here else None
    except ValueError:
        return None
