"""A model by content: which bytes of which file hold the tensor with which hash, and its files as pieces.

`encode_index` writes the text that the native worker and head read from an inherited descriptor (format:
docs/models.md). The *fingerprint* of a model says that two copies compute the same, whatever their paths,
names, shards and layout. Its *content id* says that they are the same bytes: BLAKE3-256 of the sizes of the
files and the hashes of their pieces of 4 MiB. The id proves a `PieceIndex`, and that proves each piece as it
arrives. Names do not count. A piece ends where its file ends.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from blake3 import blake3

from meshd.model.gguf import Header

_MAGIC = "meshd-weights 1"
_NO_DESCRIPTOR = -1
PIECE_BYTES = 4 << 20
HASH_BYTES = 32
_CONTENT = b"meshd content 1\n"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The identity of one state of one file: if any of these four changes, its bytes may have changed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `offset` and `size` in bytes of file `file`; `digest` is their BLAKE3-256."""

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
    """Return a hex digest that two files share if they hold the same model.

    It covers names, types, shapes and content of all tensors, and all metadata that changes what is computed
    (architecture, tokenizer). It ignores how the file is laid out or described: shards, alignment, names,
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
    # Of the general keys the model loader reads only these; the rest describes the model.
    return not key.startswith("general.") or key.startswith(("general.architecture", "general.tensor_extra"))


def encode_index(index: WeightsIndex, descriptors: Sequence[int] | None = None) -> bytes:
    """Return the text for the native side; `descriptors`: inherited by the child, None on the head."""
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
    """Join the indexes and fingerprints of several models, for a worker that holds more than one."""
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
class Piece:
    """A piece: `length` bytes of file number `file`; `offset` from its start, `digest` their BLAKE3-256."""

    number: int
    file: int
    offset: int
    length: int
    digest: bytes


@dataclass(frozen=True)
class PieceIndex:
    """The index of a model's files.

    `sizes` of the files in order; `hashes` of all pieces, concatenated. Raises ValueError if they do not fit.
    """

    sizes: tuple[int, ...]
    hashes: bytes

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1 or len(self.hashes) != count_pieces(self.sizes) * HASH_BYTES:
            raise ValueError("the hashes are not those of files of these sizes")

    @cached_property
    def content(self) -> bytes:
        """The content id."""
        head = struct.pack(f">I{len(self.sizes)}Q", len(self.sizes), *self.sizes)
        return blake3(_CONTENT + head + self.hashes).digest()

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def count(self) -> int:
        """The number of pieces."""
        return len(self.hashes) // HASH_BYTES

    @cached_property
    def _firsts(self) -> Sequence[int]:
        """The number of each file's first piece."""
        return list(accumulate((pieces_of(size) for size in self.sizes), initial=0))[:-1]

    def piece(self, number: int) -> Piece:
        """Return a piece by number. Raises IndexError."""
        if not 0 <= number < self.count:
            raise IndexError(number)
        file = bisect_right(self._firsts, number) - 1
        offset = (number - self._firsts[file]) * PIECE_BYTES
        length = min(PIECE_BYTES, self.sizes[file] - offset)
        at = number * HASH_BYTES
        return Piece(number, file, offset, length, self.hashes[at : at + HASH_BYTES])

    def numbers(self, file: int, offset: int, size: int) -> range:
        """Return the numbers of the pieces that contain these bytes of a file; empty beyond the file."""
        if not (0 <= file < len(self.sizes) and offset >= 0 and 0 < size <= self.sizes[file] - offset):
            return range(0)
        first = self._firsts[file]
        return range(first + offset // PIECE_BYTES, first + (offset + size - 1) // PIECE_BYTES + 1)

    def holds(self, number: int, data: bytes) -> bool:
        """Say whether `data` has the bytes of that piece."""
        piece = self.piece(number)
        return len(data) == piece.length and blake3(data).digest() == piece.digest


def pieces_of(size: int) -> int:
    """Return the number of pieces of a file of that size."""
    return -(-size // PIECE_BYTES)


def count_pieces(sizes: Sequence[int]) -> int:
    """Return the number of pieces of files of these sizes."""
    return sum(map(pieces_of, sizes))
