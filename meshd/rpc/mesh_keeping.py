"""Recognises tensors that a head requested of a mesh-server by content, that were missed, and that it then
sends.

LOAD names them with hash and place, LOADED says which were missed, and WRITE brings them, each from its
beginning to its end, in pieces. What arrives is not believed here: the store hashes it.
"""

from dataclasses import dataclass
from typing import Protocol

from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.rpc import mesh_protocol as wire

MAX_WANTED = 4096  # asked for or missed, and not come yet; of more nothing is kept
_WORTH = frozenset(map(wire.LOAD_RESULTS.index, ("no-such-hash", "unreadable", "file-changed")))
_KINDS = tuple(TENSOR_TYPE_NAMES[name.lower()].number for name in wire.TYPES)


@dataclass(frozen=True, slots=True)
class Missed:
    """A tensor by its content: `digest` as the head says, ggml type, bytes."""

    digest: bytes
    kind: int
    size: int


class Sink(Protocol):
    """Receives recognised tensors; must not block."""

    def loaded(self, digest: bytes) -> None:
        """Note that this content was read from a file of this node."""
        ...

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        """Take bytes of a missed tensor; the `last` ones complete it. Returns False to take no more of it."""
        ...


@dataclass(slots=True)
class _Coming:
    """A missed tensor at a place of a buffer, of which `done` bytes have come."""

    tensor: Missed
    buffer: int
    offset: int
    done: int = 0

    @property
    def place(self) -> tuple[int, int]:
        """The buffer and the offset of its next byte."""
        return self.buffer, self.offset + self.done


class MeshKeeping:
    """The missed tensors of one connection. Holds MAX_WANTED small entries and no data."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._asked: dict[int, tuple[_Coming, ...]] = {}  # by id of the LOAD
        self._held = 0
        self._wanted: dict[tuple[int, int], _Coming] = {}  # by place
        self._coming: _Coming | None = None
        self._left = 0  # bytes of the WRITE under way

    @property
    def waits(self) -> bool:
        """True if something was missed, and has not come."""
        return bool(self._wanted or self._left)

    def asked(self, identity: int, entries: memoryview) -> None:
        """Record a LOAD of whole entries; no other with this id is outstanding."""
        count = len(entries) // wire.LOAD_ENTRY.size
        if self._held + len(self._wanted) + count > MAX_WANTED:
            return
        fields = tuple(wire.LOAD_ENTRY.iter_unpack(entries))
        if any(kind >= len(_KINDS) for _buffer, kind, *_rest in fields):
            return  # the worker refuses all of it
        self._held += count
        self._asked[identity] = tuple(
            _Coming(Missed(digest, _KINDS[kind], size), buffer, offset)
            for buffer, kind, offset, size, digest in fields
        )

    def answered(self, identity: int, results: bytes) -> None:
        """Handle LOADED: record each tensor that was found, or missed and worth keeping."""
        asked = self._asked.pop(identity, ())
        self._held -= len(asked)
        for coming, result in zip(asked, results, strict=False):
            if result == 0:
                self._sink.loaded(coming.tensor.digest)
            elif result in _WORTH and coming.tensor.size:
                self._wanted[coming.place] = coming

    def sent(self, buffer: int, offset: int, size: int) -> None:
        """Handle the beginning of a WRITE of `size` bytes, whose data comes by `more`."""
        self._left = 0
        coming = self._wanted.pop((buffer, offset), None)
        if coming is not None and 0 < size <= coming.tensor.size - coming.done:
            self._coming, self._left = coming, size

    def more(self, data: bytes | memoryview) -> None:
        """Take the next bytes of the tensor being written, of this message or a later one."""
        count = min(len(data), self._left)
        if not count or self._coming is None:
            return
        coming = self._coming
        last = coming.done + count == coming.tensor.size
        going = self._sink.piece(coming.tensor, coming.done, bytes(data[:count]), last=last)
        coming.done += count
        self._left = self._left - count if going else 0
        if going and not last and not self._left:
            self._wanted[coming.place] = coming
