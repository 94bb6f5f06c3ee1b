"""The index of a model's weights by content: which bytes of which file hold the tensor with which hash.

`encode_index` writes the text that the native worker and head read from an inherited descriptor (format:
docs/models.md). `fingerprint` says whether two models are the same, whatever their paths, names and shards.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from meshd.base.errors import UserError
from meshd.model.gguf import Header

MAX_INDEX_TENSORS = 1_000_000  # what the native reader accepts
MAX_INDEX_FILES = 1024
_MAGIC = "meshd-weights 1"
_NO_DESCRIPTOR = -1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What identifies one state of one file: any change of these four means other bytes may be there."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """`offset` and `size` in bytes of file number `file`; `digest` is BLAKE3-256 of exactly these bytes."""

    file: int
    kind: int  # ggml type number
    offset: int
    size: int
    digest: bytes
    name: str


@dataclass(frozen=True, slots=True)
class WeightsIndex:
    """Every tensor of a model; `files` in the order of the shards."""

    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]
    fingerprint: str  # hex of BLAKE3-256

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)


def fingerprint(headers: Sequence[Header], digests: Sequence[Sequence[bytes]]) -> str:
    """Hex digest that two files share when they hold the same model.

    Takes names, types, shapes and content of all tensors, and all metadata that changes what is computed
    (architecture, tokenizer). Leaves out how the file is laid out or described: shards, alignment, names,
    authors. `digests[i][j]` is the hash of tensor j of file i.
    """
    whole = blake3(b"meshd model 1\n")
    tensors = sorted(
        (tensor.name, tensor.kind.number, tensor.dims, digest)
        for header, values in zip(headers, digests, strict=True)
        for tensor, digest in zip(header.tensors, values, strict=True)
    )
    for name, kind, dims, digest in tensors:
        whole.update(f"{kind} {' '.join(map(str, dims))} {name}\n".encode() + digest)
    keys = {key: value for header in headers for key, value in header.digests.items() if _matters(key)}
    for key in sorted(keys):
        whole.update(f"{key}\n".encode() + keys[key])
    return whole.hexdigest()


def _matters(key: str) -> bool:
    if key.startswith("split."):
        return False
    # of the general keys only these are read by the model loader; the rest describes
    return not key.startswith("general.") or key.startswith(("general.architecture", "general.tensor_extra"))


def encode_index(index: WeightsIndex, descriptors: Sequence[int] | None = None) -> bytes:
    """The text for the native side; `descriptors`: inherited numbers of the files, None on the head."""
    if descriptors is None:
        descriptors = [_NO_DESCRIPTOR] * len(index.files)
    lines = [_MAGIC]
    for number, (file, descriptor) in enumerate(zip(index.files, descriptors, strict=True)):
        lines.append(f"file {number} {descriptor} {file.size} {file.mtime_ns} {file.ctime_ns} {file.inode}")
    for tensor in index.tensors:
        lines.append(
            f"tensor {tensor.file} {tensor.kind} {tensor.offset} {tensor.size} "
            f"{tensor.digest.hex()} {tensor.name}"
        )
    lines.append("end\n")
    return "\n".join(lines).encode()


def join_indexes(indexes: Sequence[WeightsIndex]) -> WeightsIndex:
    """One index over several models, for a worker that holds more than one; the fingerprints are joined."""
    files: list[FileEntry] = []
    tensors: list[TensorEntry] = []
    for index in indexes:
        first = len(files)
        files.extend(index.files)
        tensors.extend(
            TensorEntry(
                tensor.file + first, tensor.kind, tensor.offset, tensor.size, tensor.digest, tensor.name
            )
            for tensor in index.tensors
        )
    joined = blake3("\n".join(index.fingerprint for index in indexes).encode()).hexdigest()
    return WeightsIndex(tuple(files), tuple(tensors), indexes[0].fingerprint if len(indexes) == 1 else joined)


@dataclass(frozen=True, slots=True)
class DecodedIndex:
    """What an index text says: the descriptors beside the entries."""

    descriptors: tuple[int, ...]
    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]


def decode_index(text: bytes) -> DecodedIndex:
    """Parse an index text with the rules of the native reader. Raises UserError that names the line."""
    if not text.endswith(b"\nend\n"):
        raise UserError("weights index: the last line is not `end`", hint="the index was cut short")
    try:
        lines = text.decode().split("\n")[:-2]
    except UnicodeDecodeError:
        raise UserError("weights index: not UTF-8 text") from None
    if lines[0] != _MAGIC:
        raise UserError(f"weights index: begins with `{lines[0][:40]}`, expected `{_MAGIC}`")
    descriptors: list[int] = []
    files: list[FileEntry] = []
    tensors: list[TensorEntry] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            if line.startswith("file "):
                descriptor, entry = _file_line(line, expected=len(files))
                descriptors.append(descriptor)
                files.append(entry)
            else:
                tensors.append(_tensor_line(line, files))
        except ValueError as error:
            raise UserError(f"weights index: line {number}: {error}: `{line[:80]}`") from None
    if len(files) > MAX_INDEX_FILES or len(tensors) > MAX_INDEX_TENSORS:
        raise UserError(f"weights index: {len(files)} files and {len(tensors)} tensors are too many")
    return DecodedIndex(tuple(descriptors), tuple(files), tuple(tensors))


def _number(field: str, *, least: int = 0) -> int:
    if not field.removeprefix("-").isascii() or not field.removeprefix("-").isdigit() or len(field) > 20:
        raise ValueError(f"`{field[:24]}` is not a number")
    value = int(field)
    if value < least:
        raise ValueError(f"{value} is too small")
    return value


def _file_line(line: str, *, expected: int) -> tuple[int, FileEntry]:
    fields = line.split(" ")
    if len(fields) != 7:
        raise ValueError("expected 7 fields")
    if _number(fields[1]) != expected:
        raise ValueError(f"expected file {expected}")
    entry = FileEntry(
        size=_number(fields[3]),
        mtime_ns=_number(fields[4], least=-(1 << 63)),
        ctime_ns=_number(fields[5], least=-(1 << 63)),
        inode=_number(fields[6]),
    )
    return _number(fields[2], least=_NO_DESCRIPTOR), entry


def _tensor_line(line: str, files: Sequence[FileEntry]) -> TensorEntry:
    fields = line.split(" ", 6)
    if len(fields) != 7 or fields[0] != "tensor" or not fields[6]:
        raise ValueError("expected a file or tensor line")
    file = _number(fields[1])
    if file >= len(files):
        raise ValueError(f"file {file} is not listed")
    offset, size = _number(fields[3]), _number(fields[4])
    if offset + size > files[file].size:
        raise ValueError("the tensor reaches beyond its file")
    if not re.fullmatch(r"[0-9a-f]{64}", fields[5], re.ASCII):
        raise ValueError("the hash is not 64 hexadecimal digits in lower case")
    return TensorEntry(file, _number(fields[2]), offset, size, bytes.fromhex(fields[5]), fields[6])
