"""Hashes of the pieces of model files, kept between starts by the state of the files as those of tensors.

An entry is believed under the rules of hash_cache.py: the states are exactly those that it was made for, its
checksum holds, and nobody else could have written it. A model that was pulled from members has one from the
start; any other is read once when a member first asks for its pieces.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from blake3 import blake3

from meshd.base import log
from meshd.base.files import read_own_file, replace_file
from meshd.model.weights_index import HASH_BYTES, PIECE_BYTES, PieceIndex
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.hashes import hash_tensors
from meshd.store.interface import HashProgress, ProgressCallback
from meshd.wire.limits import MAX_MODEL_PIECES

MAX_PIECE_ENTRIES = 64  # an entry of 20 GB has 160 KB
_MAGIC = b"meshd-pieces 1\n"
_ENDING = ".pieces"
_MOST_FRESH = 4
_log = log.get("store")


@dataclass(frozen=True, slots=True)
class _PieceSpan:
    """A span in the form that hash_tensors takes."""

    name: str
    offset: int
    size: int


class PieceCache:
    """Entries in one folder, `<cache>/pieces`. All but `read` do short file operations and raise nothing."""

    def __init__(self, folder: Path, hashes: HashCache) -> None:
        """Keep the entries in `folder`. `hashes` lends its clock, and its turns at reading."""
        self._folder = folder
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
        path = self._path(states)
        try:
            data = read_own_file(path, most=2 * MAX_MODEL_PIECES * HASH_BYTES)
            with suppress(OSError):
                os.utime(path)  # the least recently used goes first
        except OSError:
            return None
        return None if data is None else _decode(data, states)

    def save(self, states: Sequence[FileState], index: PieceIndex) -> None:
        """Store the index; replaces the entry as a whole or not at all."""
        body = _MAGIC + _lines(states) + index.hashes
        try:
            replace_file(self._path(states), body + blake3(body).digest())
            kept = sorted(self._folder.glob(f"*{_ENDING}"), key=lambda path: path.stat().st_mtime_ns)
            for path in kept[: max(0, len(kept) - MAX_PIECE_ENTRIES)]:
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("weights_cache_not_written", path=str(self._folder), why=str(error))

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
                rate = done / seconds if seconds > 0 else 0.0
                progress(HashProgress(label, done, total, rate, finished=done == total))

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

    def _path(self, states: Sequence[FileState]) -> Path:
        return self._folder / (blake3(_lines(states)).hexdigest(16) + _ENDING)


def _lines(states: Sequence[FileState]) -> bytes:
    return "".join(f"{state.line}\n" for state in states).encode()


def _decode(data: bytes, states: Sequence[FileState]) -> PieceIndex | None:
    head = _MAGIC + _lines(states)
    body, checksum = data[:-HASH_BYTES], data[-HASH_BYTES:]
    if not body.startswith(head) or blake3(body).digest() != checksum:
        return None
    try:
        return PieceIndex(tuple(state.size for state in states), body[len(head) :])
    except ValueError:
        return None
