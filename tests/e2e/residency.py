"""Which parts of a file the kernel holds in memory: tells what was read from disk, in any way. Linux."""

import ctypes
import mmap
import os
import sys
from collections.abc import Iterable
from pathlib import Path

_PAGE = mmap.PAGESIZE


def drop(path: Path) -> None:
    """Have the kernel forget what it holds of the file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if sys.platform == "linux":
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_ahead_bytes(path: Path) -> int:
    """Return how far the kernel reads ahead on the file's device; its default where that cannot be seen."""
    device = path.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in (place / "queue", place / ".." / "queue"):  # of a disk, of a partition
        if (queue / "read_ahead_kb").exists():
            return int((queue / "read_ahead_kb").read_text()) * 1024
    return 128 * 1024


def resident_bytes(path: Path, ranges: Iterable[tuple[int, int]]) -> int:
    """Return the bytes of these (offset, size) ranges that are held, of pages wholly inside a range."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = path.stat().st_size
    with path.open("rb") as file:
        address = libc.mmap(
            None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0)
        )
    pages = -(-size // _PAGE)
    held = (ctypes.c_ubyte * pages)()
    try:
        if libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), held) != 0:
            raise OSError(ctypes.get_errno(), "mincore")
    finally:
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
    return sum(
        _PAGE * (held[page] & 1)
        for offset, length in ranges
        for page in range(-(-offset // _PAGE), (offset + length) // _PAGE)
    )
