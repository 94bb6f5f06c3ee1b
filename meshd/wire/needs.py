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

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_ASKED_TENSORS,
    MAX_GIVEN_BYTES,
    MAX_MODEL_FILES,
    MAX_NEEDED_ROWS,
    MAX_TEXT_BYTES,
)
from meshd.wire.message import Fields, pack, plain

CONTENT_BYTES = 32
MARK_BYTES = 8  # of a hash: a wrong guess makes a worker fetch in vain, or get a tensor from the head
_ROW = struct.Struct(">HHQQ32s")


@dataclass(frozen=True, slots=True)
class NeededTensor:
    """`size` bytes at `offset` of file number `file`, with this BLAKE3-256; `kind`: ggml's number."""

    file: int
    kind: int
    offset: int
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Needs:
    """Some tensors of a worker's part, in the `files` files of this content, which have `size` bytes."""

    content: bytes
    size: int
    files: int
    tensors: tuple[NeededTensor, ...]
    last: bool = True

    def encode(self) -> bytes:
        rows = [_ROW.pack(one.file, one.kind, one.offset, one.size, one.digest) for one in self.tensors]
        return pack(
            {
                "type": "needs",
                "content": self.content,
                "size": self.size,
                "files": self.files,
                "tensors": b"".join(rows),
                "last": self.last,
            }
        )


@dataclass(frozen=True, slots=True)
class Fetched:
    """The worker fetches no more: `count` bytes came from members; `text` says from whom, or why none did.

    `held`: bytes of what it needs that it has read, and that are in its memory; 0 unless it was to hold them.
    """

    count: int
    text: str
    held: int = 0

    def encode(self) -> bytes:
        return pack({"type": "fetched", "count": self.count, "text": plain(self.text), "held": self.held})


@dataclass(frozen=True, slots=True)
class Begin:
    """All workers have fetched: start the server."""

    def encode(self) -> bytes:
        return pack({"type": "begin"})


def in_messages(needs: Needs) -> Iterator[Needs]:
    """The same, of at most as many rows as one message has."""
    rows = needs.tensors
    for at in range(0, max(1, len(rows)), MAX_NEEDED_ROWS):
        last = at + MAX_NEEDED_ROWS >= len(rows)
        yield replace(needs, tensors=rows[at : at + MAX_NEEDED_ROWS], last=last)


def read_needs(fields: Fields) -> Needs:
    """Raises RemoteProtocolError."""
    rows = fields.raw("tensors", most=MAX_NEEDED_ROWS * _ROW.size)
    if len(rows) % _ROW.size:
        raise RemoteProtocolError("field `tensors` must be whole rows", code="message")
    needs = Needs(
        content=fields.raw("content", exact=CONTENT_BYTES),
        size=fields.number("size", low=1, high=MAX_GIVEN_BYTES),
        files=fields.number("files", low=1, high=MAX_MODEL_FILES),
        tensors=tuple(NeededTensor(*row) for row in _ROW.iter_unpack(rows)),
        last=fields.flag("last"),
    )
    for one in needs.tensors:
        inside = one.file < needs.files and 0 < one.size <= needs.size and one.offset <= needs.size - one.size
        if not inside:
            raise RemoteProtocolError("field `tensors` has a tensor that no model has", code="message")
    return needs


def read_fetched(fields: Fields) -> Fetched:
    """Raises RemoteProtocolError."""
    return Fetched(
        fields.number("count", low=0, high=2 * MAX_GIVEN_BYTES),
        fields.text("text", most=MAX_TEXT_BYTES),
        fields.number("held", low=0, high=MAX_GIVEN_BYTES, default=0),
    )


def mark(digest: bytes) -> bytes:
    """By which both sides name a tensor until it matters."""
    return digest[:MARK_BYTES]


def read_marks(fields: Fields) -> bytes:
    """Raises RemoteProtocolError."""
    marks = fields.raw("marks", most=MAX_ASKED_TENSORS * MARK_BYTES, default=b"")
    if len(marks) % MARK_BYTES:
        raise RemoteProtocolError("field `marks` must be whole ones", code="message")
    return marks


def split_marks(marks: bytes) -> list[bytes]:
    """Of `mark`s one behind the other."""
    return [marks[at : at + MARK_BYTES] for at in range(0, len(marks), MARK_BYTES)]


def as_bits(flags: Sequence[bool]) -> bytes:
    """The first flag is the lowest bit of the first byte."""
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes(-(-len(flags) // 8), "little")


def from_bits(bits: bytes, count: int) -> list[bool]:
    """The first `count` flags; those that are not there are not set."""
    number = int.from_bytes(bits, "little")
    return [bool(number >> place & 1) for place in range(count)]
