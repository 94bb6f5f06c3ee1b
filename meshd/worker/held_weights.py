"""Weights that a worker holds ready without a process: read once, and kept in the kernel's page cache.

A mesh-server that is started later reads the weights from the page cache instead of the disk. The kernel may
drop them when memory is short, so every minute the worker asks for them again, which costs little for the
pages that are still cached.
"""

import asyncio
import functools
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from meshd.base.tasks import in_thread
from meshd.base.units import in_bytes

_READ_BYTES = 1 << 20  # at a time: it is thrown away
_STEP_BYTES = 16 << 20  # between two checks whether the weights are still wanted
_MADV_POPULATE_READ = 22  # Linux 5.14; POSIX_FADV_WILLNEED reads only as much as is convenient
_AGAIN_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of an open file: `size` bytes at `offset`."""

    descriptor: int
    offset: int
    size: int


class HeldWeights:
    """Weights to keep in the page cache. The descriptors stay open while `read` or `keep` runs."""

    def __init__(self, parts: Sequence[FilePart]) -> None:
        self._parts = parts

    async def read(self, on_progress: Callable[[str], None]) -> int:
        """Read all weights once. Returns the number of bytes that could be read."""
        total = sum(part.size for part in self._parts)
        done = 0
        for step in self._steps():
            on_progress(f"reads its weights: {in_bytes(done)} of {in_bytes(total)}")
            done += await in_thread(functools.partial(_read, step))
        return done

    async def keep(self) -> None:
        """Refresh the weights every minute until cancelled."""
        while True:
            await asyncio.sleep(_AGAIN_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Ask the kernel to read the pages that it has dropped (Linux 5.14)."""
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
    """Read the part and return how many bytes were there: a file may have been cut, and a disk may fail."""
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
    """Populate the pages of `part` without copying. Cached pages cost a microsecond for each 64 KiB."""
    begin = part.offset - part.offset % mmap.ALLOCATIONGRANULARITY
    length = part.offset + part.size - begin
    # An earlier kernel does not know this advice, and a file may have been cut: the pages stay as they are.
    with suppress(OSError, ValueError), _mapped(part.descriptor, begin, length) as mapped:
        mapped.madvise(_MADV_POPULATE_READ)


def _mapped(descriptor: int, begin: int, length: int) -> mmap.mmap:
    return mmap.mmap(descriptor, length, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=begin)
