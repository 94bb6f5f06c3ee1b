"""Weights that a worker holds ready without a process: read once, and kept in the kernel's page cache.

A mesh-server that is started later reads them from there, not from the disk. The kernel may drop them when
memory is short, so it is asked for them again every minute, which costs little for what is still there.
"""

import asyncio
import functools
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from meshd.base.byte_format import in_bytes
from meshd.base.tasks import in_thread

_READ_BYTES = 1 << 20  # at a time: it is thrown away
_STEP_BYTES = 16 << 20  # between two looks at whether it is still wanted
_MADV_POPULATE_READ = 22  # of Linux 5.14; POSIX_FADV_WILLNEED reads only as much as is convenient
_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FilePart:
    """`size` bytes at `offset` of an open file."""

    descriptor: int
    offset: int
    size: int


class HeldWeights:
    """The descriptors stay open for as long as `read` or `keep` run."""

    def __init__(self, parts: Sequence[FilePart]) -> None:
        self._parts = parts

    async def read(self, on_progress: Callable[[str], None]) -> int:
        """Read all of it; returns the bytes that could be read."""
        total = sum(part.size for part in self._parts)
        done = 0
        for step in self._steps():
            on_progress(f"reads its weights: {in_bytes(done)} of {in_bytes(total)}")
            done += await in_thread(functools.partial(_read, step))
        return done

    async def keep(self) -> None:
        """As long as it is needed."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Have the kernel read what it has dropped (Linux 5.14)."""
        if sys.platform == "linux":
            for step in self._steps():
                await in_thread(functools.partial(_populate, step))

    def _steps(self) -> list[FilePart]:
        return [
            FilePart(part.descriptor, part.offset + at, min(_STEP_BYTES, part.size - at))
            for part in self._parts
            for at in range(0, part.size, _STEP_BYTES)
        ]


def _read(part: FilePart) -> int:
    """Bytes that are there: a file may have been cut, and a disk may fail."""
    done = 0
    while done < part.size:
        try:
            data = os.pread(part.descriptor, min(_READ_BYTES, part.size - done), part.offset + done)
        except OSError:
            break
        if not data:
            break
        done += len(data)
    return done


def _populate(part: FilePart) -> None:
    """Copies nothing; what is there already costs a microsecond for each 64 KiB."""
    begin = part.offset - part.offset % mmap.ALLOCATIONGRANULARITY
    length = part.offset + part.size - begin
    # an earlier kernel does not know it, and a file may have been cut: it stays as it was read
    with suppress(OSError, ValueError), _mapped(part.descriptor, begin, length) as mapped:
        mapped.madvise(_MADV_POPULATE_READ)


def _mapped(descriptor: int, begin: int, length: int) -> mmap.mmap:
    return mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=begin)
