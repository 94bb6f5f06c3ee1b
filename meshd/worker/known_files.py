"""The model files of a worker, known by content: hashed once, and again when one is changed or replaced.

A lease takes the index and the descriptors together, once (`take`). Hashing again for a later lease changes
nothing for a lease that is being granted. The native server detects a stale index: it compares sizes and
times.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.processes import Outgoing
from meshd.base.units import in_bytes
from meshd.model.weights_index import WeightsIndex, encode_index, join_indexes
from meshd.store.interface import ContentStore, HashProgress, LeaseCache, WeightsFile
from meshd.wire.lease import as_bits, mark, split_marks

_PROGRESS_SECONDS = 2.0
_LIBRARY_SECONDS = 5.0  # for the library to be read at the start; then a lease uses what is known of it
LOG = log.get("worker")


@dataclass(frozen=True, slots=True)
class FilePart:
    """A part of an open file: `size` bytes at `offset`."""

    descriptor: int
    offset: int
    size: int


class Weights:
    """The index and the open files of one lease. It owns the descriptors until a child process gets them.

    `has_model`: some of the files are model files. `lease_cache`: tensors from the content store. `sizes`:
    bytes of each tensor that is present, by its digest.
    """

    def __init__(
        self,
        indexes: Sequence[WeightsIndex],
        files: Sequence[WeightsFile],
        outgoing: Outgoing,
        lease_cache: LeaseCache | None = None,
    ) -> None:
        """Add duplicates of the descriptors to `outgoing`. Raises OSError."""
        self.has_model = bool(indexes)
        descriptors = [descriptor for file in files for descriptor in file.descriptors]
        if lease_cache is not None:
            indexes = [*indexes, lease_cache.index]
            descriptors += lease_cache.descriptors
        self._index = join_indexes(indexes)
        self._descriptors = tuple(outgoing.add(os.dup(descriptor)) for descriptor in descriptors)
        self.sizes = {tensor.digest: tensor.size for tensor in self._index.tensors}
        self.lease_cache = lease_cache
        if lease_cache is not None:
            lease_cache.handed_over()

    def lacks(self, marks: bytes) -> bytes:
        """Return a bit for each tensor in `marks` (wire/lease.py), set if missing; empty without a store."""
        if self.lease_cache is None:
            return b""
        here = set(map(mark, self.sizes))
        return as_bits([mark not in here for mark in split_marks(marks)])

    def places(self, digests: Collection[bytes]) -> list[FilePart]:
        """Return where the tensors with these digests lie, each once, in the order of the files."""
        found = {
            tensor.digest: tensor for tensor in reversed(self._index.tensors) if tensor.digest in digests
        }
        parts = [
            FilePart(self._descriptors[tensor.file], tensor.offset, tensor.size) for tensor in found.values()
        ]
        return sorted(parts, key=lambda part: (part.descriptor, part.offset))

    def hand_over(self, hand_over: Callable[[bytes], int], outgoing: Outgoing) -> int:
        """Return a descriptor from which the child reads the index as text. Raises OSError."""
        return outgoing.add(hand_over(encode_index(self._index, self._descriptors)))


class LibraryFile(WeightsFile, Protocol):
    """An open model of the library."""

    def known_index(self) -> WeightsIndex | None:
        """Return the index if that takes no reading of the files, else None."""
        ...


class Library(Protocol):
    """The models in meshd's own folder."""

    async def paths(self) -> Sequence[Path]:
        """Return the first file of each complete model."""
        ...

    async def open(self, path: Path) -> LibraryFile:
        """Open the model. Raises UserError, OSError."""
        ...


class LibraryFiles:
    """The library's models, by the tensors in them. They are open only while they are read or lent."""

    def __init__(self, library: Library | None) -> None:
        self._library = library
        self._marks: dict[Path, frozenset[bytes]] = {}
        self._looked = asyncio.Event()
        self._look = asyncio.Event()

    @property
    def marks(self) -> frozenset[bytes]:
        """The marks of all tensors."""
        return frozenset().union(*self._marks.values())

    async def serve(self) -> None:
        """Learn what the library has, and again after each lease that lacks something."""
        while self._library is not None:
            self._look.clear()
            paths = await self._library.paths()
            self._marks = {path: marks for path, marks in self._marks.items() if path in paths}
            for is_reading in (False, True):  # those with known hashes come first
                for path in paths:
                    with suppress(
                        UserError, OSError
                    ):  # it is being written or removed: looked at again later
                        if path not in self._marks:
                            await self._learn(self._library, path, is_reading=is_reading)
            self._looked.set()
            await self._look.wait()

    async def _learn(self, library: Library, path: Path, *, is_reading: bool) -> None:
        with closing(await library.open(path)) as file:
            if is_reading:
                await file.index()
            index = file.known_index()
        if index is not None:
            self._marks[path] = frozenset(mark(tensor.digest) for tensor in index.tensors)
        elif is_reading:  # its hashes cannot be kept: each lease would read it again
            self._marks[path] = frozenset()

    async def take(self, wanted: set[bytes], held: ExitStack) -> list[tuple[WeightsIndex, WeightsFile]]:
        """Open the models that have tensors with the `wanted` marks; `held` closes them."""
        if self._library is None or not wanted:
            return []
        with suppress(TimeoutError):
            async with asyncio.timeout(_LIBRARY_SECONDS):
                await self._looked.wait()
        found: list[tuple[WeightsIndex, WeightsFile]] = []
        for path, marks in list(self._marks.items()):
            if not wanted & marks:
                continue
            try:
                file = await self._library.open(path)
            except (UserError, OSError):
                self._marks.pop(path, None)
                continue
            held.callback(file.close)
            index = file.known_index()
            if index is None:  # it was replaced
                self._marks.pop(path, None)
                continue
            found.append((index, file))
            wanted = wanted - marks
        if wanted:
            self._look.set()
        return found


class KnownFiles:
    """The files that this worker knows.

    `serve` runs as long as the worker; `notes` reports their problems.
    """

    def __init__(
        self,
        files: Sequence[WeightsFile],
        store: ContentStore | None = None,
        library: Library | None = None,
    ) -> None:
        self._files = tuple(files)
        self._store = store
        self.library = LibraryFiles(library)
        self._index: WeightsIndex | None = None
        self._known = asyncio.Event()
        self._stale = asyncio.Event()
        self._hashing = ""
        self._replaced: set[str] = set()
        self._unknown = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the model files for status, one line each."""
        replaced = [f"`{name}` was replaced by another file, which is now used" for name in self._replaced]
        partial = [note for file in self._files if (note := _partial(file))]
        return (*sorted(replaced), *partial, *([self._unknown] if self._unknown else []))

    def lacks(self, marks: bytes) -> bytes:
        """Return a bit for each tensor in `marks`, set if it is missing; empty until that is known."""
        if not self._known.is_set():
            return b""
        here = {mark(tensor.digest) for tensor in self._index.tensors} if self._index is not None else set()
        if self._store is not None:
            here.update(map(mark, self._store.digests))
        here |= self.library.marks
        return as_bits([mark not in here for mark in split_marks(marks)])

    async def serve(self) -> None:
        """Hash the files, and again when one has changed before a lease. Raises UserError the first time."""
        await self._know()
        while True:
            self._stale.clear()
            self._known.set()
            await self._stale.wait()
            try:
                await self._follow()
                await self._know()
                self._unknown = ""
            except (UserError, OSError) as error:
                # The file was cut, for example: then its weights come over the network.
                hint = error.hint if isinstance(error, UserError) else ""
                LOG.warning("weights_unknown", why=str(error), hint=hint)
                self._unknown = f"{error}: its weights come over the network"

    async def take(
        self, outgoing: Outgoing, on_progress: Callable[[str], Awaitable[None]], *, peer: str, marks: bytes
    ) -> Weights | None:
        """Return what is present of the files, the content store and the library, or None without any.

        Of the library come files with tensors that have these `marks` and are nowhere else. Waits until the
        files are hashed. Raises OSError.
        """
        lease_cache = None
        if self._store is not None:
            lease_cache = await self._store.take(peer=peer, on_progress=on_progress)
        if lease_cache is not None:
            outgoing.at_end(lease_cache.close)
        if not all(file.stat_unchanged() and file.paths_unchanged() for file in self._files):
            self._known.clear()
            self._stale.set()
        while not self._known.is_set():
            try:
                async with asyncio.timeout(_PROGRESS_SECONDS):
                    await self._known.wait()
            except TimeoutError:
                await on_progress(self._hashing or "getting ready")
        indexes = [self._index] if self._index is not None else []
        files = [*self._files] if self._index is not None else []
        kept = [lease_cache.index] if lease_cache is not None else []
        here = {mark(tensor.digest) for index in (*indexes, *kept) for tensor in index.tensors}
        with ExitStack() as held:
            for index, file in await self.library.take(set(split_marks(marks)) - here, held):
                indexes.append(index)
                files.append(file)
            if not indexes and lease_cache is None:
                return None
            return Weights(indexes, files, outgoing, lease_cache)

    async def _follow(self) -> None:
        """Open the file that each path leads to now, instead of the file that was there before."""
        for file in self._files:
            if file.paths_unchanged():
                continue
            try:
                replaced = await file.follow()
            except UserError as error:  # the path was removed, for example: the open file stays valid
                LOG.warning("model_file_gone", file=file.name, why=error.what)
                continue
            if replaced:
                LOG.warning("model_file_replaced", file=file.name)
                self._replaced.add(file.name)

    async def _know(self) -> None:
        self._index = None
        if self._files:
            indexes = [await file.index(self._hash_progress) for file in self._files]
            self._index = join_indexes(indexes)
            for file in self._files:
                if why := _partial(file):
                    LOG.warning("model_file_incomplete", file=file.name, why=why)
            LOG.info("weights_known", count=len(self._index.tensors), bytes=self._index.weight_bytes)

    def _hash_progress(self, progress: HashProgress) -> None:
        if progress.text != self._hashing:
            LOG.info("hashing", what=progress.text)
        self._hashing = progress.text


def _partial(file: WeightsFile) -> str:
    """Return what `file` lacks, for status, or an empty string for a complete file."""
    parts = [f"{in_bytes(file.missing_bytes)} at the end"] if file.missing_bytes else []
    parts += [f"{file.missing_shards} of its shards"] if file.missing_shards else []
    return (
        f"`{file.name}` lacks {' and '.join(parts)}: the missing part comes over the network" if parts else ""
    )
