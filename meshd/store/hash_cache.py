"""Hashes of tensors and of pieces kept between starts, by the state of the files they were read from.

An entry is believed only when size, mtime, ctime, inode and device of the open file are exactly those it was
made for, its own checksum holds, it belongs to this user, and, for tensors, the tensor table is the same. A
file system that is mounted again may get another device number (USB, network shares, btrfs, after a restart):
if only that differs, some tensors are read and compared. Anything else is a miss, and a cache that cannot be
written is a slower start, never a failure.
"""

import asyncio
import os
import random
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from blake3 import blake3

from meshd.base import log
from meshd.base.files import NEW_PREFIX, read_own_file, replace_file
from meshd.model.gguf import Header
from meshd.model.weights_index import HASH_BYTES, PIECE_BYTES, FileEntry, PieceIndex
from meshd.store.hashes import hash_tensors
from meshd.store.interface import HashProgress, ProgressCallback
from meshd.wire.limits import MAX_MODEL_PIECES

MAX_ENTRY_BYTES = 16 * 1024 * 1024
_VERSION = "meshd-hashes 1"
_PIECES_MAGIC = b"meshd-pieces 1\n"
_MOST_FRESH = 4
_MOST_LEFTOVERS = 8  # of killed writers; the newest may be another process at work
_SAMPLE_BYTES = 4 << 20  # read again where the device number has changed
_LONGEST_TICK_NS = 10_000_000  # kernels stamp files with a clock that ticks every 1 to 10 ms
_FINE_TICK_NS = 5 * _LONGEST_TICK_NS
_COARSE_TICK_NS = 2_000_000_000  # FAT and some network shares: two seconds

_LOG = log.get("store")


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


class _Entries:
    """Entries in one folder, each of files in one state. Short file operations, which raise nothing."""

    suffix: ClassVar[str]
    most_entries: ClassVar[int]
    most_bytes: ClassVar[int]  # of one entry

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _read(self, key: bytes) -> bytes | None:
        """Return an entry that nobody else could have written, if there is one; the least recently used goes
        first.
        """
        path = self._path(key)
        try:
            data = read_own_file(path, most=self.most_bytes)
            with suppress(OSError):  # a disk that takes nothing: it is read all the same
                os.utime(path)
        except OSError:
            return None
        return data

    def _write(self, key: bytes, data: bytes) -> None:
        """Replace an entry as a whole or not at all, and drop those that are too many."""
        try:
            replace_file(self._path(key), data)
            self._prune(f"*{self.suffix}", self.most_entries)
            self._prune(f"{NEW_PREFIX}*", _MOST_LEFTOVERS)
        except OSError as error:
            _LOG.warning("weights_cache_not_written", path=str(self.folder), why=str(error))

    def _path(self, key: bytes) -> Path:
        return self.folder / (blake3(key).hexdigest(16) + self.suffix)

    def _prune(self, pattern: str, most: int) -> None:
        newest_first = sorted(
            self.folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns, reverse=True
        )
        for path in newest_first[most:]:
            path.unlink(missing_ok=True)


class HashCache(_Entries):
    """The hashes of tensors, `<cache>/weights`."""

    suffix = ".hashes"
    most_entries = 256  # files; an entry of a large model takes about 100 KB
    most_bytes = MAX_ENTRY_BYTES

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reading = asyncio.Lock()  # held while a file is hashed: one at a time, a disk has one head

    def clock_ns(self) -> int | None:
        """Return the file system's present time, by creating a file; None when the folder cannot be written.

        Taken from the file system because that is the clock that stamps files; read it before hashing.
        """
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                return os.fstat(probe.fileno()).st_ctime_ns
        except OSError as error:
            _LOG.warning("weights_cache_unusable", path=str(self.folder), why=str(error))
            return None

    def load(
        self, state: FileState, header: Header, descriptor: int | None = None
    ) -> tuple[bytes, ...] | None:
        """Return the hashes of the header's tensors, in their order, or None if they are not cached.

        With the file's `descriptor`, an entry of another device number is compared with a sample.
        """
        data = self._read(state.here.encode())
        found = None if data is None else _decode(data, state, header)
        if found is None:
            return None
        digests, device = found
        if device != state.device:
            try:
                if descriptor is None or not _sample_is(descriptor, header, digests):
                    return None
            except OSError:
                return None
            self.save(state, header, digests)
        return digests

    def save(self, state: FileState, header: Header, digests: Sequence[bytes]) -> None:
        """Store hashes."""
        self._write(state.here.encode(), _encode(state, header, digests))


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


@dataclass(frozen=True, slots=True)
class _PieceSpan:
    """A span in the form that hash_tensors takes."""

    name: str
    offset: int
    size: int


class PieceCache(_Entries):
    """The hashes of the pieces of model files, `<cache>/pieces`.

    An entry is believed only for files in exactly its states. A model that was pulled from members has one
    from the start; any other is read once when a member first asks for its pieces.
    """

    suffix = ".pieces"
    most_entries = 64  # an entry of 20 GB has 160 KB
    most_bytes = 2 * MAX_MODEL_PIECES * HASH_BYTES

    def __init__(self, folder: Path, hashes: HashCache) -> None:
        """Keep the entries in `folder`. `hashes` lends its clock, and its turns at reading."""
        super().__init__(folder)
        self.hashes = hashes
        self._fresh: dict[tuple[FileState, ...], PieceIndex] = {}  # of files written a moment before

    @classmethod
    def below(cls, cache: Path) -> Self:
        """Return the cache in meshd's cache folder, with its hashes of tensors.

        A process needs one of each: those who share them take turns at reading, and find what another has
        just read.
        """
        return cls(cache / "pieces", HashCache(cache / "weights"))

    def load(self, states: Sequence[FileState]) -> PieceIndex | None:
        """Return the hashes known of files in exactly these states, or None."""
        if (fresh := self._fresh.get(tuple(states))) is not None:
            return fresh
        data = self._read(_lines(states))
        return None if data is None else _decode_pieces(data, states)

    def save(self, states: Sequence[FileState], index: PieceIndex) -> None:
        """Store the index."""
        body = _PIECES_MAGIC + _lines(states) + index.hashes
        self._write(_lines(states), body + blake3(body).digest())

    async def read(
        self, descriptors: Sequence[int], labels: Sequence[str], progress: ProgressCallback
    ) -> PieceIndex:
        """Return the hashes of open files by one reading; files take turns. Raises UserError, OSError."""
        clock = self.hashes.clock_ns()
        states = [FileState.of(descriptor) for descriptor in descriptors]
        digests: list[bytes] = []
        for descriptor, state, label in zip(descriptors, states, labels, strict=True):
            spans = [
                _PieceSpan(label, at, min(PIECE_BYTES, state.size - at))
                for at in range(0, state.size, PIECE_BYTES)
            ]

            def on_progress(done: int, seconds: float, label: str = label, total: int = state.size) -> None:
                progress(HashProgress.after(seconds, label, done=done, total=total))

            async with self.hashes.reading:
                digests += await hash_tensors(descriptor, spans, label=label, on_progress=on_progress)
        index = PieceIndex(tuple(state.size for state in states), b"".join(digests))
        settled = clock is not None and all(state.settled_at(clock) for state in states)
        if states == [FileState.of(descriptor) for descriptor in descriptors]:
            if settled:
                self.save(states, index)
            else:  # a wrong one harms nobody: who fetches a piece looks at its hash
                self._fresh[tuple(states)] = index
                while len(self._fresh) > _MOST_FRESH:
                    del self._fresh[next(iter(self._fresh))]
        return index


def _lines(states: Sequence[FileState]) -> bytes:
    return "".join(f"{state.line}\n" for state in states).encode()


def _decode_pieces(data: bytes, states: Sequence[FileState]) -> PieceIndex | None:
    head = _PIECES_MAGIC + _lines(states)
    body, checksum = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if not body.startswith(head) or blake3(body).digest() != checksum:
        return None
    try:
        return PieceIndex(tuple(state.size for state in states), body[len(head) :])
    except ValueError:
        return None
