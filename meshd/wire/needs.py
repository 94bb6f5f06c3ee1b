"""Messages of a lease about weights that a worker takes from members before its mesh-server starts.

With the question comes a mark of each tensor (the beginning of its hash), and with the offer which of them
the worker lacks. If members give the file, the head reserves with `fetch` and says where in the file
the tensors of the worker's part are (some Needs, the last of which says so). The worker takes what it lacks
from members that have the file's content (model/piece_index.py), and says what came (Fetched). When all
workers have said so, the head lets them start their servers (Begin).

A worker that only holds weights ready for the loss of another one is asked in the same way, and told to
begin never.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from meshd.wire.bounds import NEEDED, As, AtMost, Between, Prose, Size
from meshd.wire.codec import Message
from meshd.wire.limits import MAX_ASKED_TENSORS, MAX_GIVEN_BYTES, MAX_MODEL_FILES, MAX_NEEDED_ROWS

CONTENT_BYTES = 32
MARK_BYTES = 8  # of a hash: a wrong guess makes a worker fetch in vain, or get a tensor from the head
Marks = Annotated[bytes, AtMost(MAX_ASKED_TENSORS * MARK_BYTES, step=MARK_BYTES)]
Lacks = Annotated[bytes, AtMost(MAX_ASKED_TENSORS // 8)]  # a bit for each of the marks
_ROW = struct.Struct(">HHQQ32s")


@dataclass(frozen=True, slots=True)
class NeededTensor:
    """`size` bytes at `offset` of file number `file`, with this BLAKE3-256; `kind`: ggml's number."""

    file: int
    kind: int
    offset: int
    size: int
    digest: bytes


def _packed(tensors: tuple[NeededTensor, ...]) -> bytes:
    return b"".join(
        _ROW.pack(tensor.file, tensor.kind, tensor.offset, tensor.size, tensor.digest) for tensor in tensors
    )


def _unpacked(rows: bytes) -> tuple[NeededTensor, ...]:
    return tuple(NeededTensor(*row) for row in _ROW.iter_unpack(rows))


@dataclass(frozen=True, slots=True)
class Needs(Message, tag="needs"):
    """The tensors of a worker's part, in the `files` files of this content, which have `size` bytes."""

    content: Annotated[bytes, Size(CONTENT_BYTES)]
    size: Annotated[int, Between(1, MAX_GIVEN_BYTES)]
    files: Annotated[int, Between(1, MAX_MODEL_FILES)]
    tensors: Annotated[
        tuple[NeededTensor, ...],
        As(Annotated[bytes, AtMost(MAX_NEEDED_ROWS * _ROW.size, step=_ROW.size)], _packed, _unpacked),
    ]
    last: Annotated[bool, NEEDED] = True

    def conflict(self) -> str:
        """Return what is wrong with the values together; empty: nothing."""
        if all(self._has(tensor) for tensor in self.tensors):
            return ""
        return "a message whose `tensors` lie in its `files` and `size`"

    def _has(self, tensor: NeededTensor) -> bool:
        return (
            tensor.file < self.files
            and 0 < tensor.size <= self.size
            and tensor.offset <= self.size - tensor.size
        )


@dataclass(frozen=True, slots=True)
class Fetched(Message, tag="fetched"):
    """The worker fetches no more: `count` bytes came from members; `text` says from whom, or why none did.

    `held`: bytes of what it needs that it has read, and that are in its memory; 0 unless it was to hold them.
    """

    count: Annotated[int, Between(0, 2 * MAX_GIVEN_BYTES)]
    text: Prose
    held: Annotated[int, Between(0, MAX_GIVEN_BYTES)] = 0


@dataclass(frozen=True, slots=True)
class Begin(Message, tag="begin"):
    """All workers have fetched: start the server."""


def in_messages(needs: Needs) -> Iterator[Needs]:
    """Split into messages of at most MAX_NEEDED_ROWS rows; only the final one is `last`."""
    rows = needs.tensors
    for at in range(0, max(1, len(rows)), MAX_NEEDED_ROWS):
        last = at + MAX_NEEDED_ROWS >= len(rows)
        yield replace(needs, tensors=rows[at : at + MAX_NEEDED_ROWS], last=last)


def mark(digest: bytes) -> bytes:
    """Return the short form by which both sides name a tensor until its full hash matters."""
    return digest[:MARK_BYTES]


def split_marks(marks: bytes) -> list[bytes]:
    """Split concatenated `mark`s."""
    return [marks[at : at + MARK_BYTES] for at in range(0, len(marks), MARK_BYTES)]


def as_bits(flags: Sequence[bool]) -> bytes:
    """Pack flags as bits: the first flag is the lowest bit of the first byte."""
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes(-(-len(flags) // 8), "little")


def from_bits(bits: bytes, count: int) -> list[bool]:
    """Return the first `count` flags; missing ones are not set."""
    number = int.from_bytes(bits, "little")
    return [bool(number >> place & 1) for place in range(count)]
