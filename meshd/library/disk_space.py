"""How much of a disk a download may use: other programs, and meshd's own state, need some of it."""

import errno
import shutil
from pathlib import Path

from meshd.base.byte_format import in_bytes
from meshd.base.errors import UserError

RESERVED_BYTES = 64 << 20  # stay free on the disk
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT)


def check_space(place: Path, lacking: int, *, hint: str) -> None:
    """Raises UserError unless `lacking` bytes fit there, and the reserve after them."""
    there = _nearest(place)
    free = free_bytes(there)
    if lacking and lacking + RESERVED_BYTES > free:
        why = f"{in_bytes(lacking)} are needed, {in_bytes(free)} are free"
        if lacking <= free:
            why += f"; {in_bytes(RESERVED_BYTES)} must stay free"
        raise no_space(there, why, hint=hint)


def free_bytes(place: Path) -> int:
    """Of the disk where `place` is, or will be. Raises OSError."""
    return shutil.disk_usage(_nearest(place)).free


def _nearest(place: Path) -> Path:
    return next(folder for folder in (place, *place.parents) if folder.exists())


def no_space(place: Path, why: str, *, hint: str) -> UserError:
    """The error for a disk that is full, or will be."""
    return UserError(f"not enough space in `{place}`: {why}", hint=hint)
