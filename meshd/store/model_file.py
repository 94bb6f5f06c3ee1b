"""A model file that is open: header, descriptors, and its index of weights by content.

The file, with all its shards, is opened once, read-only. What is hashed is what is later handed to a native
worker: the same open file. See `interface.py` for the words.
"""

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path

from meshd.base import log
from meshd.base.errors import UserError
from meshd.model.gguf import Header
from meshd.model.weights_index import TensorEntry, WeightsIndex, fingerprint
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.hashes import hash_tensors
from meshd.store.interface import HashProgress, ProgressCallback
from meshd.store.shard import Shard, check_shards, close_all, open_shards

_ATTEMPTS = 3  # a file that changed while it was hashed is read again this often

_log = log.get("store")


class ModelFile:
    """An open model; implements `WeightsFile`. Make it with `ModelFile.open`; `close` it."""

    def __init__(
        self, shards: Sequence[Shard], cache: HashCache, *, partial: bool = False, name: str = ""
    ) -> None:
        self._shards = tuple(shards)
        self._given_name = name
        self._partial = partial
        self._cache = cache
        self._index: WeightsIndex | None = None
        self._hashing = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls, path: Path, *, cache: HashCache, partial: bool = False, name: str = ""
    ) -> "ModelFile":
        """Open `path` and, when it is one shard of several, all of them. Raises UserError.

        `partial`: the ends of files and whole shards may be missing, as on a worker that has some tensors.
        `name`: what people call it, where the file's name says nothing.
        """
        return cls(await opened(path, partial=partial), cache, partial=partial, name=name)

    @property
    def name(self) -> str:
        return self._given_name or self._shards[0].path.name

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(shard.path for shard in self._shards)

    @property
    def headers(self) -> tuple[Header, ...]:
        return tuple(shard.header for shard in self._shards)

    @property
    def header_of(self) -> bytes:
        return b""

    @property
    def missing_bytes(self) -> int:
        return sum(shard.header.missing_bytes for shard in self._shards)

    @property
    def missing_shards(self) -> int:
        return self._shards[0].header.shard[1] - len(self._shards)

    @property
    def descriptors(self) -> tuple[int, ...]:
        return tuple(shard.descriptor for shard in self._shards)

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        """Return the index of the present content: the cached one, or by one reading of the files.

        A second caller waits for the first. Cancelling ends the reading. Raises UserError when the file is
        cut, unreadable, or keeps changing.
        """
        async with self._hashing:
            for _ in range(_ATTEMPTS):
                if self._index is not None and self.stat_unchanged():
                    return self._index
                self._index = None
                for shard in self._shards:
                    shard.refresh()
                check_shards(self._shards, partial=self._partial)
                states = [shard.state for shard in self._shards]
                digests = [await self._digests(shard, progress) for shard in self._shards]
                if states == [FileState.of(shard.descriptor) for shard in self._shards]:
                    self._index = self._build(digests)
                    return self._index
                _log.warning("model_file_changed_while_read", file=self.name)
        raise UserError(
            f"`{self.name}` changes while it is read",
            hint="wait until its download or copy is complete, then start again",
        )

    def known_index(self) -> WeightsIndex | None:
        """Return the index if that takes no reading of the files, else None."""
        cached = [self._cache.load(shard.state, shard.header, shard.descriptor) for shard in self._shards]
        digests = [entry for entry in cached if entry is not None]
        return self._build(digests) if len(digests) == len(cached) else None

    def stat_unchanged(self) -> bool:
        """Return True if size, mtime, ctime and inode are those that header and index were read from."""
        try:
            return all(FileState.of(shard.descriptor) == shard.state for shard in self._shards)
        except OSError:
            return False

    def paths_unchanged(self) -> bool:
        """Return True if the paths still lead to the open files: false once one was replaced."""
        try:
            return all(FileState.at(shard.path) == shard.state for shard in self._shards)
        except OSError:
            return False

    async def follow(self) -> bool:
        async with self._hashing:
            shards = await opened(self._shards[0].path, partial=self._partial)
            new = [(shard.state.inode, shard.state.device) for shard in shards]
            if self._closed or new == [(shard.state.inode, shard.state.device) for shard in self._shards]:
                close_all(shards)
                return False
            old, self._shards, self._index = self._shards, tuple(shards), None
            close_all(old)
            return True

    def close(self) -> None:
        """Close the descriptors; idempotent."""
        if not self._closed:
            self._closed = True
            close_all(self._shards)

    async def _digests(self, shard: Shard, progress: ProgressCallback | None) -> tuple[bytes, ...]:
        state, header = shard.state, shard.header
        cached = self._cache.load(state, header, shard.descriptor)
        if cached is not None:
            return cached
        clock = self._cache.clock_ns()
        total = sum(tensor.size for tensor in header.tensors)
        label = shard.path.name

        def on_progress(done: int, seconds: float) -> None:
            if progress is not None:
                rate = done / seconds if seconds > 0 else 0.0
                progress(HashProgress(label, done, total, rate, finished=done == total))

        on_progress(0, 0.0)
        async with self._cache.reading:
            digests = await hash_tensors(
                shard.descriptor, header.tensors, label=label, on_progress=on_progress
            )
        if clock is not None and state.settled_at(clock) and FileState.of(shard.descriptor) == state:
            self._cache.save(state, header, digests)
        return digests

    def _build(self, digests: Sequence[Sequence[bytes]]) -> WeightsIndex:
        tensors = tuple(
            TensorEntry(number, tensor.kind.number, tensor.offset, tensor.size, digest, tensor.name)
            for number, (shard, values) in enumerate(zip(self._shards, digests, strict=True))
            for tensor, digest in zip(shard.header.tensors, values, strict=True)
        )
        files = tuple(shard.state.entry for shard in self._shards)
        return WeightsIndex(files, tensors, fingerprint(self.headers, digests))


async def opened(path: Path, *, partial: bool = False, header_only: bool = False) -> list[Shard]:
    """Run `open_shards` in a thread: on a network share opening and reading the header can take seconds."""
    opening = asyncio.get_running_loop().run_in_executor(
        None, functools.partial(open_shards, path, partial=partial, header_only=header_only)
    )
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: "asyncio.Future[list[Shard]]") -> None:
    if opening.exception() is None:
        close_all(opening.result())
