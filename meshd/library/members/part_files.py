"""The files of a model that is being pulled: pieces in place, found again after a cut or a restart.

They grow in `FOLDER/.parts/CONTENT/` under their final names, where listings do not look, and the whole
folder is renamed at the end. No progress is recorded: on a restart the pieces are read and hashed again, so
that neither a crash nor a power cut can pass off a hole as a piece. Holes are skipped. Folders of headers for
a plan are removed with the plan, or later if the plan was killed.
"""

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.units import in_bytes
from meshd.library.disk import DISK_IS_FULL, RESERVED_BYTES, cannot_write, check_space, folders_in, no_space
from meshd.library.pulled_models import WHOLE_KIND
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.store.hash_cache import FileState

PARTS_FOLDER = ".parts"
_CONTENT_DIGITS = 16  # digits in the final folder's name
_SPACE_HINT = (
    "free some (`meshd model ls`, `meshd model rm NAME`), or move MESHD_CACHE to another disk; what is there "
    "is not fetched again"
)
PLAN_KIND = "plan"  # prefix of folders for plans, beside other models
_HEADERS_FOLDER = ".headers"  # in the cache
_OLD_SECONDS = 24 * 3600.0


class PulledAlready(UserError):
    """Somebody else pulls the same content into this folder; `lock` is held until that has ended."""

    def __init__(self, what: str, *, hint: str, lock: Path) -> None:
        super().__init__(what, hint=hint)
        self.lock = lock


class PartFiles:
    """The files of one pull, named `names`. Blocking, for one thread at a time; `close` waits for a write.

    Raises UserError for a full disk, an unwritable folder, and another running pull of the same content.
    """

    def __init__(
        self, folder: Path, index: PieceIndex, names: Sequence[str], *, kind: str = WHOLE_KIND
    ) -> None:
        """Use `kind` as the prefix of the folder's name."""
        self._folder = folder
        self.index = index
        content = index.content.hex()
        self._part = folder / PARTS_FOLDER / (content if kind == WHOLE_KIND else f"{kind}-{content}")
        self._final = folder / f"{kind}-{content[:_CONTENT_DIGITS]}"
        self._names = tuple(names)
        self.there: set[int] = set()  # pieces, as far as the pull knows
        self._descriptors: list[int] = []
        self._writing = threading.Lock()  # prevents closing a descriptor during a write
        self._lock = -1

    @property
    def final_paths(self) -> tuple[Path, ...]:
        """The final paths of the files."""
        return tuple(self._final / name for name in self._names)

    @property
    def part_paths(self) -> tuple[Path, ...]:
        """The paths of the files before the end."""
        return tuple(self._part / name for name in self._names)

    def open(self) -> None:
        """Open or create the files, under an exclusive lock."""
        try:
            for place in (self._folder, self._part.parent, self._part):  # no other user's, on a shared disk
                place.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The lock.
            lock = lock_of(self._part)
            self._lock = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PulledAlready(
                    f"`{self._names[0]}` is being pulled into `{self._folder}` already",
                    hint="wait for the other `meshd model pull`",
                    lock=lock,
                ) from None
            # The files.
            self._take_names()
            for path, size in zip(self.part_paths, self.index.sizes, strict=True):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                self._descriptors.append(os.open(path, flags, 0o666))
                if os.fstat(self._descriptors[-1]).st_size > size:
                    os.ftruncate(self._descriptors[-1], size)
        except OSError as error:
            raise self.cannot_write(error) from None

    def _take_names(self) -> None:
        """Rename files begun under other names, since another member may name the same bytes differently."""
        there = sorted(self._part.glob(f"*{Path(self._names[0]).suffix}"))
        if {path.name for path in there} <= set(self._names):
            return
        for path, name in zip(there, self._names, strict=False):
            path.replace(path.with_name(f"{name}.renamed"))
        for path in there[len(self._names) :]:
            path.unlink()
        for name in self._names[: len(there)]:
            (self._part / f"{name}.renamed").replace(self._part / name)

    def present(self, numbers: Iterable[int]) -> set[int]:
        """Return which of these pieces are there, by their hashes."""
        found = set()
        for number in numbers:
            piece = self.index.piece(number)
            descriptor = self._descriptors[piece.file]
            if _has_data(descriptor, piece.offset, piece.length) and self.index.holds(
                number, os.pread(descriptor, piece.length, piece.offset)
            ):
                found.add(number)
        return found

    def read(self, file: int, offset: int, length: int) -> bytes:
        """Read from that file, as `os.pread`. Raises OSError."""
        return os.pread(self._descriptors[file], length, offset)

    def lengthen(self) -> None:
        """Extend files that lack their last pieces to their full lengths."""
        try:
            for descriptor, size in zip(self._descriptors, self.index.sizes, strict=True):
                os.ftruncate(descriptor, size)
        except OSError as error:
            raise self.cannot_write(error) from None

    def check_space(self, lacking: int) -> None:
        """Raise UserError unless `lacking` more bytes fit on the disk."""
        check_space(self._part, lacking, hint=_SPACE_HINT)

    def write(self, number: int, data: bytes) -> None:
        """Write a piece with the right hash. Raises UserError if the disk is or would be full."""
        piece = self.index.piece(number)
        free = shutil.disk_usage(self._part).free
        if free < RESERVED_BYTES + len(data):
            raise no_space(self._part, f"only {in_bytes(free)} are free", hint=_SPACE_HINT)
        with self._writing:
            if not self._descriptors:
                raise UserError(f"`{self._names[0]}` is not being pulled any more")
            try:
                left, at = memoryview(data), piece.offset
                while len(left):
                    count = os.pwrite(self._descriptors[piece.file], left, at)
                    left, at = left[count:], at + count
            except OSError as error:
                raise self.cannot_write(error) from None

    def flush(self) -> None:
        """Flush all bytes to the disk before returning."""
        try:
            for descriptor in self._descriptors:
                os.fsync(descriptor)
        except OSError as error:
            raise self.cannot_write(error) from None

    @property
    def states(self) -> list[FileState]:
        """The states of the open files. Raises OSError."""
        return [FileState.of(descriptor) for descriptor in self._descriptors]

    def finish(self) -> list[FileState]:
        """Move the complete model to its place; return the states of its files."""
        try:
            if self._final.exists():
                shutil.rmtree(self._final)
            self._part.replace(self._final)
            return self.states
        except OSError as error:
            raise self.cannot_write(error) from None

    def discard(self) -> None:
        """Remove the files: they are not what they were said to be."""
        shutil.rmtree(self._part, ignore_errors=True)

    def leave_nothing(self) -> None:
        """Remove the partial files and the lock, after `close`, of a folder that nobody else uses."""
        self.discard()
        with suppress(OSError):
            lock_of(self._part).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; their bytes stay. Idempotent."""
        with self._writing:
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = []
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def cannot_write(self, error: OSError) -> UserError:
        """Return the error for a failed write of these files, or beside them."""
        place = self._folder if error.errno in DISK_IS_FULL else self._part
        return cannot_write(place, error, space_hint=_SPACE_HINT, variable="MESHD_CACHE")


def lock_of(part: Path) -> Path:
    """Return the file whose lock marks a running pull into this folder."""
    return part.with_name(f"{part.name}.lock")


def is_locked(lock: Path) -> bool:
    """Say whether somebody pulls into the folder of this lock. Raises OSError if it cannot be opened."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _has_data(descriptor: int, offset: int, length: int) -> bool:
    """Say whether there is data; False for a range that is all hole, or beyond the end."""
    with suppress(OSError):  # the error means that there is no data after the offset
        return os.lseek(descriptor, offset, os.SEEK_DATA) < offset + length
    return False


assert PIECE_BYTES % 4096 == 0  # pieces share no file system block with their neighbours


def hub_plans(cache: Path) -> Path:
    """Return the folder of headers for plans of models on Hugging Face."""
    return cache / _HEADERS_FOLDER


def remove_old_plans(cache: Path, models: Path) -> None:
    """Remove headers that plans have left behind, ignoring errors."""
    with suppress(OSError):
        places = [
            *folders_in(models, f"{PLAN_KIND}-"),
            *folders_in(models / PARTS_FOLDER, f"{PLAN_KIND}-"),
            *folders_in(hub_plans(cache), ""),
        ]
        if places:
            began_before = _now(cache) - _OLD_SECONDS
            for place in places:
                _remove_old(place, began_before)


def _now(folder: Path) -> float:
    """Return the time by the clock that stamps files. Raises OSError."""
    with tempfile.TemporaryFile(dir=folder) as probe:
        return os.fstat(probe.fileno()).st_mtime


def _remove_old(place: Path, began_before: float) -> None:
    with suppress(OSError):
        if place.lstat().st_mtime < began_before:
            shutil.rmtree(place, ignore_errors=True)
            lock_of(place).unlink(missing_ok=True)
