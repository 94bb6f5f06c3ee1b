"""One open file of a model, and the siblings that belong to it when the model is sharded."""

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from meshd.base.errors import UserError
from meshd.model.gguf import Header, read_header
from meshd.model.gguf_names import HEADER_SUFFIX, header_stem
from meshd.model.model_name import MESH
from meshd.store.hash_cache import FileState
from meshd.store.hashes import unreadable

MAX_SHARDS = 512
_SHARD_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.gguf|\.header)$")


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
