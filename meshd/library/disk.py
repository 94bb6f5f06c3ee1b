"""Access folders and files that other programs fill, and check the free space of a disk.

Walks are bounded in depth and in number of entries, and never follow a loop of links. A download leaves some
space on the disk for other programs and meshd's own state.
"""

import errno
import os
import shutil
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.units import in_bytes
from meshd.model.gguf_names import GGUF_SUFFIX

MAX_ENTRIES = 20_000  # per walk; the largest collections have some thousand files
RESERVED_BYTES = 64 << 20  # of the disk that stay free
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFault(UserError):
    """Raised if a disk of this machine cannot be written, or is full."""


def folders_in(folder: Path, prefix: str) -> list[Path]:
    """Return the folders whose names begin with `prefix`, by name; none without `folder`. Raises OSError."""
    try:
        with os.scandir(folder) as entries:
            found = [
                Path(entry.path)
                for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)
                if entry.name.startswith(prefix) and entry.is_dir()
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def files_below(folder: Path, *, depth: int, suffix: str = GGUF_SUFFIX) -> list[tuple[Path, int]]:
    """Return files with this suffix and their sizes, by path; links to files count, links to folders do not.

    Unreadable folders and dangling links are skipped. `depth` 1: only the folder's own files.
    """
    found: list[tuple[Path, int]] = []
    waiting = [(folder, depth)]
    left = MAX_ENTRIES
    while waiting and left > 0:
        place, levels = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        if levels > 1 and not entry.name.startswith("."):
                            waiting.append((Path(entry.path), levels - 1))
                    elif entry.name.lower().endswith(suffix) and (size := _file_size(entry)) is not None:
                        found.append((Path(entry.path), size))
        except OSError:
            continue
    return sorted(found)


def _file_size(entry: "os.DirEntry[str]") -> int | None:
    try:
        return entry.stat().st_size if entry.is_file() else None
    except OSError:
        return None


def is_folder(path: Path) -> bool:
    """Say whether the path is a folder; False also for an inaccessible one, as opening it explains why."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Say whether the path is a file; False also for an inaccessible one."""
    try:
        return path.is_file()
    except OSError:
        return False


def hint_for_missing(path: Path) -> str:
    """Return what to do about a missing model file; `ORG/REPO` may be meant for Hugging Face."""
    if path.suffix.lower() != GGUF_SUFFIX and path.parent.name and not is_folder(path.parent):
        return f"for a repository of Hugging Face: `hf:{path.parent.name}/{path.name}`"
    return "check the path and its permissions"


def size_of(path: Path) -> int:
    """Return the size in bytes; 0 if the file is gone or unreadable."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def bytes_on_disk(path: Path) -> int:
    """Return the bytes that the file occupies, without holes; 0 if it is gone."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def check_space(place: Path, lacking: int, *, hint: str) -> None:
    """Raise UserError unless `lacking` bytes and the reserve fit on the disk.

    That is no DiskFault: a member may have made the size up.
    """
    there = _nearest(place)
    free = free_bytes(there)
    if lacking and lacking + RESERVED_BYTES > free:
        why = f"{in_bytes(lacking)} are needed, {in_bytes(free)} are free"
        if lacking <= free:
            why += f"; {in_bytes(RESERVED_BYTES)} must stay free"
        raise UserError(_without_space(there, why), hint=hint)


def free_bytes(place: Path) -> int:
    """Return the free bytes of the disk where `place` is, or will be. Raises OSError."""
    return shutil.disk_usage(_nearest(place)).free


def _nearest(place: Path) -> Path:
    return next(folder for folder in (place, *place.parents) if folder.exists())


def cannot_write(place: Path, error: OSError, *, space_hint: str, variable: str) -> DiskFault:
    """Return the error for a failed write at `place`, which `variable` of the environment can move."""
    if error.errno in DISK_IS_FULL:
        return no_space(place, "the disk is full", hint=space_hint)
    return DiskFault(
        f"cannot write `{error.filename or place}`: {(error.strerror or str(error)[:200]).lower()}",
        hint=f"fix the cause, or set {variable} to a directory that you can write to",
    )


def no_space(place: Path, why: str, *, hint: str) -> DiskFault:
    """Return the error for a disk that is full."""
    return DiskFault(_without_space(place, why), hint=hint)


def _without_space(place: Path, why: str) -> str:
    return f"not enough space in `{place}`: {why}"
