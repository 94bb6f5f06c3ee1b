"""A model of which only the header and the tensors outside the layers are here: for a head without layers.

The file is sparse, with everything at its place in the whole one, so that llama-server can map it. It is
called `NAME.header` and not `.gguf`, so that nobody takes it for a model. Beside it, in `NAME.hashes`, are
the hashes of all tensors, as a member told them, with the fingerprint that they must give. What is there was
compared with them when the file was made (library/members/pull.py), and is again in any other state.

A model in several files has as many such files, and the hashes beside the first. llama-server finds parts by
their names, which must end in `.gguf`: links in a folder in which nobody looks for models have such names.
"""

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Self

from blake3 import blake3

from meshd.base.errors import UserError
from meshd.base.files import read_own_file, replace_file
from meshd.base.tasks import in_thread
from meshd.model.gguf import Header, TensorInfo
from meshd.model.gguf_names import GGUF_SUFFIX
from meshd.model.layers import is_of_layer
from meshd.model.weights_index import HASH_BYTES, fingerprint
from meshd.store.hash_cache import MAX_ENTRY_BYTES, FileState, HashCache
from meshd.store.hashes import hash_tensors
from meshd.store.model_file import ModelFile, Shard, close_all, opened

NOTE_SUFFIX = ".hashes"
LINKS_FOLDER = ".split"
_NOTE_FORM = 3
_CHECKSUM_BYTES = 64


@dataclass(frozen=True, slots=True)
class HeaderNote:
    """The facts known about a header file. `name`: the file's name at `node`, the member by whose word
    `digests` are the hashes of all tensors, in the order of files and headers. `states`: of the files, when
    the tensors present were verified.
    """

    name: str
    node: str
    content: bytes
    fingerprint: str
    digests: tuple[bytes, ...]
    states: tuple[FileState, ...]

    def encode(self) -> bytes:
        """Return the note as stored in `NAME.hashes`."""
        body = json.dumps(
            {
                "version": _NOTE_FORM,
                "name": self.name,
                "node": self.node,
                "content": self.content.hex(),
                "fingerprint": self.fingerprint,
                "states": [state.line for state in self.states],
                "digests": b"".join(self.digests).hex(),
            }
        ).encode()
        return body + b"\n" + blake3(body).hexdigest().encode()


def decode_note(data: bytes) -> HeaderNote:
    """Decode a note. Raises ValueError."""
    body, checksum = data[: -_CHECKSUM_BYTES - 1], data[-_CHECKSUM_BYTES:]
    if blake3(body).hexdigest().encode() != checksum:
        raise ValueError("its checksum is wrong")
    fields = json.loads(body)
    if not isinstance(fields, dict) or fields.get("version") != _NOTE_FORM:
        raise ValueError("it is of another version")
    try:
        digests = bytes.fromhex(fields["digests"])
        return HeaderNote(
            name=str(fields["name"]),
            node=str(fields["node"]),
            content=bytes.fromhex(fields["content"]),
            fingerprint=str(fields["fingerprint"]),
            digests=tuple(digests[at : at + HASH_BYTES] for at in range(0, len(digests), HASH_BYTES)),
            states=tuple(FileState(*map(int, line.split())) for line in fields["states"]),
        )
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"it lacks a part: {error}") from None


def note_path(path: Path) -> Path:
    """Return the path of a header file's note; of several files, `path` is the first."""
    return path.with_suffix(NOTE_SUFFIX)


def read_note(path: Path) -> HeaderNote:
    """Read the note of a header file. Raises UserError if it cannot be trusted."""
    try:
        data = read_own_file(note_path(path), most=MAX_ENTRY_BYTES)
        if data is None:
            raise ValueError("other users could have written it")
        return decode_note(data)
    except (OSError, ValueError) as error:
        why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise _bad(path, f"`{note_path(path).name}` cannot be used: {why}") from None


def write_note(path: Path, note: HeaderNote) -> None:
    """Write the note of a header file. Raises OSError."""
    replace_file(note_path(path), note.encode())


class HeaderFile(ModelFile):
    """A header file as WeightsFile. Create it with `open_header`."""

    def __init__(self, shards: Sequence[Shard], note: HeaderNote) -> None:
        super().__init__(shards, _NotedHashes(shards, note), name=note.name + GGUF_SUFFIX)
        self._note = note

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths under which llama-server finds the files."""
        paths = super().paths
        return paths if len(paths) == 1 else link_paths(paths)

    @property
    def header_of(self) -> bytes:
        return self._note.content

    @classmethod
    async def open_header(cls, path: Path) -> Self:
        """Open a header file; verify its tensors if its files changed since the note. Raises UserError."""
        note = await in_thread(read_note, path)
        shards = await opened(path, header_only=True)
        try:
            compare_headers(shards, note)
            states = tuple(shard.state for shard in shards)
            if states != note.states:
                await compare_present(shards, note)
                note = replace(note, states=states)
                with suppress(OSError):  # then it is read again the next time
                    await in_thread(write_note, path, note)
            if len(shards) > 1:
                await in_thread(_link, [shard.path for shard in shards])
        except BaseException:
            close_all(shards)
            raise
        return cls(shards, note)


def link_paths(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the names by which llama-server finds these parts."""
    return tuple(path.parent / LINKS_FOLDER / f"{path.stem}{GGUF_SUFFIX}" for path in paths)


def _link(paths: Sequence[Path]) -> None:
    """Create the links by which llama-server finds the parts. Raises UserError."""
    try:
        for path, link in zip(paths, link_paths(paths), strict=True):
            link.parent.mkdir(exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(Path("..") / path.name)
    except OSError as error:
        raise _bad(path, f"cannot create `{link}`: {(error.strerror or str(error)).lower()}") from None


def digests_of(headers: Sequence[Header], digests: Sequence[bytes]) -> list[tuple[bytes, ...]]:
    """Split the hashes by file. Raises ValueError if there are not as many as tensors."""
    ends = list(accumulate(len(header.tensors) for header in headers))
    if ends[-1] != len(digests):
        raise ValueError("there are other tensors than hashes")
    return [tuple(digests[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def compare_headers(shards: Sequence[Shard], note: HeaderNote) -> None:
    """Raise UserError unless headers and hashes give the note's fingerprint."""
    headers = [shard.header for shard in shards]
    with suppress(ValueError):
        if fingerprint(headers, digests_of(headers, note.digests)) == note.fingerprint:
            return
    raise _bad(shards[0].path, "its header and its hashes do not belong together")


async def compare_present(shards: Sequence[Shard], note: HeaderNote) -> None:
    """Read the tensors that are present. Raises UserError unless their hashes match."""
    for shard, digests in zip(
        shards, digests_of([part.header for part in shards], note.digests), strict=True
    ):
        wanted = present_tensors(shard.header)
        found = await hash_tensors(
            shard.descriptor, wanted, label=shard.path.name, on_progress=lambda _done, _seconds: None
        )
        known = dict(zip((tensor.name for tensor in shard.header.tensors), digests, strict=True))
        for tensor, digest in zip(wanted, found, strict=True):
            if known[tensor.name] != digest:
                raise _bad(shard.path, f"tensor `{tensor.name}` is not what it was")


def present_tensors(header: Header) -> list[TensorInfo]:
    """Return the tensors that belong to no layer."""
    return [tensor for tensor in header.tensors if not is_of_layer(tensor.name)]


class _NotedHashes(HashCache):
    """Knows the hashes of some files, each in one state, and nothing of any other."""

    def __init__(self, shards: Sequence[Shard], note: HeaderNote) -> None:
        digests = digests_of([shard.header for shard in shards], note.digests)
        self._digests = dict(zip(note.states, digests, strict=True))
        self._name = note.name

    def load(
        self, state: FileState, header: Header, descriptor: int | None = None
    ) -> tuple[bytes, ...] | None:
        """Return the noted hashes. Raises UserError for another state: missing tensors cannot be hashed."""
        if (digests := self._digests.get(state)) is None:
            raise UserError(
                f"the header of `{self._name}` was changed while it was used",
                hint="restart `meshd serve`: it is compared with what is known of it",
            )
        return digests


def _bad(path: Path, what: str) -> UserError:
    """Return the error. Its hint has the path: the member's name for it finds nothing, and a damaged note no
    fingerprint.
    """
    return UserError(
        f"cannot use `{path.name}`: {what}",
        hint=f"remove it with `meshd model rm {shlex.quote(str(path))}`: it is copied from members again",
    )
