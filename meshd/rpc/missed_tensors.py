"""Recognises tensors that a head requested by content, that were missed, and that it then sends.

One connection, behind the firewall's judgement. SET_TENSOR_GGUF names them with hash and place, its answer
says which were missed; SET_TENSOR to exactly that place brings them, in pieces, in whatever order. What
arrives is not believed here: the store hashes it.
"""

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from meshd.rpc import protocol as rpc

MAX_WANTED = 4096  # asked for or missed, and not come yet; of more nothing is kept
_WORTH = frozenset({rpc.NO_SUCH_HASH, rpc.UNREADABLE, rpc.FILE_CHANGED})  # else it is here, as something else


@dataclass(frozen=True, slots=True)
class Missed:
    """A tensor by its content: `digest` as the head says, ggml type, bytes."""

    digest: bytes
    kind: int
    size: int


class Sink(Protocol):
    """Gets recognised tensors; must not block."""

    def loaded(self, digest: bytes) -> None:
        """This content was read from a file of this node."""
        ...

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        """Bytes of a missed tensor; with the `last` as many have come as it has. False: no more of it."""
        ...


@dataclass(slots=True)
class _MissedTensor:
    tensor: Missed
    place: tuple[int, int]  # buffer, address
    left: int  # bytes that have not come


class TensorKeeping:
    """Holds MAX_WANTED small entries and no data."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._asked: deque[tuple[_MissedTensor, ...] | None] = deque()
        self._held = 0
        self.wanted: dict[
            tuple[int, int], _MissedTensor
        ] = {}  # missed, not come yet; none: we need hear nothing
        self._coming: _MissedTensor | None = None
        self._at = 0
        self._left = 0

    def asked(self, message: bytes | memoryview, at: int, size: int) -> None:
        """A SET_TENSOR_GGUF whose body is at `at`. Its answer comes in the order of the requests."""
        entries = range(at + rpc.LOAD_HEAD_BYTES, at + size, rpc.LOAD_ENTRY_BYTES)
        if self._held + len(self.wanted) + len(entries) > MAX_WANTED:
            self._asked.append(None)
            return
        self._held += len(entries)
        self._asked.append(tuple(_wanted(message, entry) for entry in entries))

    def answered(self, states: bytes) -> None:
        """The answer to the first that is not answered: a state for each."""
        asked = self._asked.popleft()
        if asked is None:
            return
        self._held -= len(asked)
        for wanted, state in zip(asked, states, strict=True):
            if state == rpc.LOADED:
                self._sink.loaded(wanted.tensor.digest)
            elif state in _WORTH:
                self.wanted[wanted.place] = wanted

    def sent(self, message: bytes | memoryview, at: int, size: int) -> None:
        """A SET_TENSOR whose body is at `at`; bytes that are not in `message` yet come by `more`."""
        self._left = 0
        if not self.wanted:
            return
        _kind, handle, *_shape, data = rpc.PLACE.unpack_from(message, at)
        wanted = self.wanted.get((handle, data))
        if wanted is None:
            return
        (offset,) = rpc.U64.unpack_from(message, at + rpc.TENSOR_BYTES + 1)
        length = size - rpc.SET_TENSOR_HEAD_BYTES
        if length > wanted.left or offset + length > wanted.tensor.size:
            del self.wanted[wanted.place]  # more than it has: a part came twice
            return
        self._coming, self._at, self._left = wanted, offset, length
        self.more(message[at + rpc.SET_TENSOR_HEAD_BYTES : at + size])

    def more(self, data: bytes | memoryview) -> None:
        """Bytes behind those of before, of this message or others."""
        count = min(len(data), self._left)
        if not count or self._coming is None:
            return
        wanted = self._coming
        wanted.left -= count
        last = not wanted.left
        going = self._sink.piece(wanted.tensor, self._at, bytes(data[:count]), last=last)
        self._at += count
        self._left = self._left - count if going else 0
        if last or not going:
            self.wanted.pop(wanted.place, None)


def _wanted(message: bytes | memoryview, at: int) -> _MissedTensor:
    handle, data, size, kind, *_ne = rpc.LOAD_ENTRY.unpack_from(message, at)
    digest = bytes(message[at + rpc.LOAD_HASH.start : at + rpc.LOAD_HASH.stop])
    return _MissedTensor(Missed(digest, kind, size), (handle, data), size)
