"""A model file that is open: its shards, and its index of weights by content.

The file, with all its shards, is opened once, read-only. What is hashed is what is later handed to a native
worker: the same open file. See `interface.py` for the words.
"""

import asyncio
import errno
import functools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from meshd.base import log
from meshd.base.errors import UserError
from meshd.model.gguf import Header, read_header
from meshd.model.gguf_names import HEADER_SUFFIX, header_stem
from meshd.model.model_name import MESH
from meshd.model.weights_index import TensorEntry, WeightsIndex, fingerprint
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.hashes import hash_tensors, unreadable
from meshd.store.interface import HashProgress, ProgressCallback

_ATTEMPTS = 3  # a file that changed while it was hashed is read again this often

MAX_SHARDS = 512
_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.header)$")
_log = log.get("store")


class Shard:
    """One open file. `state` is that of the last reading of the header."""

    def __init__(self, path: Path, *, partial: bool = False) -> None:
        """Open the file and read its header. `partial`: the end of the file may be missing."""
        self.path = path
        self._partial = partial
        self.descriptor = _open(path)
        try:
            self.state = FileState.of(self.descriptor)
            self.header = self._read_header()
        except BaseException:
            os.close(self.descriptor)
            raise

    def refresh(self) -> None:
        """Read state and header again if the file has changed. Raises UserError."""
        try:
            state = FileState.of(self.descriptor)
        except OSError as error:
            raise unreadable(self.path.name, error) from error
        if state != self.state:
            self.state = state
            self.header = self._read_header()

    def _read_header(self) -> Header:
        def pread(offset: int, length: int) -> bytes:
            return os.pread(self.descriptor, length, offset)

        try:
            return read_header(pread, size=self.state.size, label=self.path.name, partial=self._partial)
        except OSError as error:
            raise unreadable(self.path.name, error) from error


def _open(path: Path) -> int:
    """Return a read-only descriptor of a regular file that is not inherited. Raises UserError."""
    try:
        # O_NONBLOCK: opening a pipe by mistake must not wait for its writer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _cannot_open(path, error) from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise UserError(f"`{path}` is a directory, expected a GGUF file", hint=_files_inside(path))
    raise UserError(f"`{path}` is not a regular file", hint="give the path of a *.gguf file")


def _cannot_open(path: Path, error: OSError | ValueError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"no model file `{path}`", hint="give the path of a *.gguf file that exists")
    if isinstance(error, PermissionError):
        return UserError(
            f"not allowed to read `{path}`",
            hint="meshd reads models in place: give your user read access to the file and its directories "
            "(`chmod a+r`, or join the group that owns it, as with Ollama's blobs)",
        )
    if isinstance(error, OSError) and error.errno in (
        errno.ESTALE,
        errno.EIO,
        errno.ETIMEDOUT,
        errno.EHOSTDOWN,
    ):
        return unreadable(str(path), error)
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UserError(f"cannot open `{path}`: {reason}", hint="give the path of a *.gguf file")


def _files_inside(folder: Path) -> str:
    try:
        names = sorted(path.name for path in folder.iterdir() if path.suffix == ".gguf")
    except OSError:
        names = []
    if not names:
        return "give the path of a *.gguf file"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return "did you mean " + ", ".join(f"`{folder / name}`" for name in names[:3]) + more


def is_header(path: Path) -> bool:
    """Return True if the path leads to a header file (header_file.py)."""
    try:
        return os.path.realpath(path).endswith(HEADER_SUFFIX)
    except ValueError:  # a NUL, which opening it explains
        return False


def open_shards(path: Path, *, partial: bool = False, header_only: bool = False) -> list[Shard]:
    """Open the file and its sibling shards, in their order; none stays open when one fails.

    With `partial` ends of files, and whole siblings, may be missing. `header_only`: of the model only the
    header is wanted, and no layer is read.
    """
    if is_header(path) and not header_only:
        name = f"{MESH}{header_stem(path.name)}"
        raise UserError(
            f"`{path.name}` is only the header of a model",
            hint=f"for all of it run `meshd model pull {name}`; `meshd serve --model {name} --header-only` "
            "serves it as it is",
        )
    given = Shard(path, partial=partial)
    shards: list[Shard] = []
    try:
        for sibling in _sibling_paths(path, given.header, partial=partial):
            shards.append(given if sibling == path else Shard(sibling, partial=partial))
        check_shards(shards, partial=partial)
    except BaseException:
        close_all([given, *(shard for shard in shards if shard is not given)])
        raise
    return shards


def _sibling_paths(path: Path, header: Header, *, partial: bool) -> list[Path]:
    number, count = header.shard
    if count == 1:
        return [path]
    match = _SHARD_NAME.match(path.name)
    if (
        match is None
        or count > MAX_SHARDS
        or int(match["count"]) != count
        or int(match["number"]) != number + 1
    ):
        raise UserError(
            f"`{path.name}` is shard {number + 1} of {count}, but its name does not say so",
            hint=f"restore the shards' original names: NAME-{number + 1:05d}-of-{count:05d}.gguf",
        )
    names = [f"{match['stem']}-{item:05d}-of-{count:05d}{match['suffix']}" for item in range(1, count + 1)]
    paths = [path.with_name(name) for name in names]
    missing = [item.name for item in paths if not item.exists()]
    if partial:
        return [item for item in paths if item.name not in missing]
    if missing:
        listed = ", ".join(f"`{name}`" for name in missing[:3]) + (" …" if len(missing) > 3 else "")
        raise UserError(
            f"the model `{path.name}` has {count} shards, missing: {listed}",
            hint=f"download the missing files into `{path.parent}`",
        )
    return paths


def check_shards(shards: Sequence[Shard], *, partial: bool = False) -> None:
    """Raise UserError unless the open files belong together, as `check_headers` does."""
    names = [shard.path.name for shard in shards]
    check_headers(names, [shard.header for shard in shards], partial=partial)


def check_headers(names: Sequence[str], headers: Sequence[Header], *, partial: bool = False) -> None:
    """Raise UserError unless the shards belong together: numbers, total of tensors, no tensor twice."""
    seen: dict[str, str] = {}
    for number, (name, header) in enumerate(zip(names, headers, strict=True)):
        if not partial and header.shard != (number, len(headers)):
            there, count = header.shard
            raise UserError(
                f"`{name}` claims to be shard {there + 1} of {count}, "
                f"expected {number + 1} of {len(headers)}",
                hint="the files are of different models: download all shards again",
            )
        for tensor in header.tensors:
            if tensor.name in seen:
                raise UserError(f"tensor `{tensor.name}` is both in `{seen[tensor.name]}` and in `{name}`")
            seen[tensor.name] = name
    expected = headers[0].integer("split.tensors.count", len(seen))
    if len(seen) != expected and not partial:
        raise UserError(
            f"the shards of `{names[0]}` hold {len(seen)} tensors, expected {expected}",
            hint="the files are of different models: download all shards again",
        )


def close_all(shards: Sequence[Shard]) -> None:
    """Close the descriptors."""
    for shard in shards:
        os.close(shard.descriptor)


@contextmanager
def shards_of(path: Path, *, partial: bool = False, header_only: bool = False) -> Iterator[list[Shard]]:
    """Open the shards as `open_shards` does, for the time of the block."""
    shards = open_shards(path, partial=partial, header_only=header_only)
    try:
        yield shards
    finally:
        close_all(shards)


def known_hashes(shards: Sequence[Shard], cache: HashCache) -> list[tuple[bytes, ...]] | None:
    """Return the hashes of all tensors by shard, if that takes no reading of the files, else None."""
    found = [cache.load(shard.state, shard.header, shard.descriptor) for shard in shards]
    known = [digests for digests in found if digests is not None]
    return known if len(known) == len(found) else None


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
        digests = known_hashes(self._shards, self._cache)
        return None if digests is None else self._build(digests)

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
                progress(HashProgress.after(seconds, label, done=done, total=total))

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
