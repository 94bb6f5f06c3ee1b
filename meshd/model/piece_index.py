"""A model's files as hashed pieces of 4 MiB, and the content id derived from all of them.

The fingerprint of a model (weights_index.py) says that two copies compute the same, whatever their layout.
Its *content id* says that they are the same bytes: BLAKE3-256 of the sizes of the files and the hashes of the
pieces. The id proves an index, and the index proves each piece as it arrives. Names do not count. A piece
ends where its file ends.
"""

import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from blake3 import blake3

PIECE_BYTES = 4 << 20
HASH_BYTES = 32
_CONTENT = b"meshd content 1\n"


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
