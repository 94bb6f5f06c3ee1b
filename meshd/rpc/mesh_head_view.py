"""A head's view of llama-server's connection with a mesh-server: weights that were sent, and neighbours.

llama-server's module checks all that a worker says (docs/native-design.md). Here nothing is held back but
MET, LOAD, LOAD_PARTS and LOADED; where the head lacks weights itself, the beginning of WRITE and FREE as
well.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from struct import Struct

from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import (
    HEAD,
    MAX_UNANSWERED,
    MESH_SERVER,
    MESSAGE_SECONDS,
    PROGRESS_WEIGHT,
    WHOLE,
    Kinds,
    Look,
    Messages,
    NodeReading,
    ReadingBudget,
    Seen,
    refused,
    unseen,
)

Placed = Callable[[bytes, int, str], None]
"""Told of each weight that is asked for by content: hash, bytes, and why it is sent; empty: it is not."""
_PLACE = Struct("<I")  # of a neighbour, in the head's list
_WRITE, _FREE = wire.MESSAGES[wire.WRITE].body, wire.MESSAGES[wire.FREE].body
MAX_WEIGHTS_ASKED = 16_384  # weights whose answers have not come; of more nothing is said
_ASKS = (wire.GRAPH, wire.COMPUTE, wire.READ)


@dataclass(frozen=True, slots=True)
class AskedWeight:
    """A tensor that a LOAD requests by its hash, and its place; or a part of one, of LOAD_PARTS.

    `span`: bytes from its beginning to its end in the buffer: more than `size` if there are gaps between the
    pieces of a part.
    """

    digest: bytes
    size: int
    buffer: int
    offset: int
    span: int

    def holds(self, buffer: int, offset: int, size: int) -> bool:
        """Return True if these bytes of a buffer lie within the weight."""
        return buffer == self.buffer and self.offset <= offset and offset + size <= self.offset + self.span


@dataclass(slots=True)
class _Buffer:
    """A buffer that the head has written to, or requested weights into."""

    has_weights: bool = False
    written: bool = False
    missed: list[AskedWeight] = field(default_factory=list)  # of which the head has the bytes


class AbsentWeights:
    """Keeps a head whose file lacks tensors from sending what is not there: holes, which would read as zeros.

    llama-server asks a mesh-server for weights by content (LOAD), and sends those that it misses (WRITE). It
    is seen before llama-server hears of it that the worker misses a tensor which this node lacks as well, and
    whatever is written to a buffer of weights must be a tensor that this node has. Holds an entry for each
    buffer of one connection, and for each tensor that was missed.

    Methods raise RemoteProtocolError; before that they call `report` with the tensor's hash (may be empty).
    """

    def __init__(self, absent: Collection[bytes], report: Callable[[bytes], None]) -> None:
        """Start a connection. `absent`: the hashes of the tensors that are not in the head's file."""
        self._absent = absent
        self._report = report
        self._buffers: dict[int, _Buffer] = {}

    def asked(self, weights: Iterable[AskedWeight]) -> None:
        """Record the LOAD of these weights."""
        for weight in weights:
            buffer = self._buffers.setdefault(weight.buffer, _Buffer())
            buffer.has_weights = True
            if buffer.written:
                raise self._refused(b"")

    def missed(self, weight: AskedWeight) -> None:
        """Record that the worker does not have this weight; the head has to send it."""
        if weight.digest in self._absent:
            raise self._refused(weight.digest)
        self._buffers.setdefault(weight.buffer, _Buffer()).missed.append(weight)

    def written(self, buffer: int, offset: int, size: int) -> None:
        """Check a WRITE of `size` bytes: it must lie within a missed weight, if the buffer has weights."""
        there = self._buffers.setdefault(buffer, _Buffer())
        if not there.has_weights:
            there.written = True
        elif not any(weight.holds(buffer, offset, size) for weight in there.missed):
            raise self._refused(b"")

    def freed(self, buffer: int) -> None:
        """Forget a buffer: its number may be reused."""
        self._buffers.pop(buffer, None)

    def uncounted(self) -> None:
        """Refuse: there are too many LOADs to look at each answer."""
        raise self._refused(b"")

    def _refused(self, digest: bytes) -> RemoteProtocolError:
        self._report(digest)
        return refused("weights are missing that this node does not have")


class MeshHeadView:
    """Implements tunnel.interface.Inspector for the head's side: the peer is the worker.

    Raises RemoteProtocolError for what is no message, and then always. Holds one message, MAX_UNANSWERED ids
    and MAX_WEIGHTS_ASKED hashes.
    """

    def __init__(
        self,
        placed: Placed,
        *,
        seen: Seen = unseen,
        absent: AbsentWeights | None = None,
        reading: NodeReading | None = None,
    ) -> None:
        """Start a connection. `seen` gets computations and results; `absent` gets weights, if the head
        lacks some.

        `reading`: the node's budget; None: one for this connection alone.
        """
        self._absent = absent
        self._placed = placed
        self._requests = Messages(_REQUESTS if absent is None else _REQUESTS_OF_WEIGHTS, seen)
        self._answers = Messages(_ANSWERS, seen)
        self._budget = ReadingBudget(reading)
        self._asked: dict[
            int, tuple[AskedWeight, ...] | None
        ] = {}  # by id of the LOAD; None: of too many, nothing is kept
        self._asked_count = 0
        self.neighbours: frozenset[int] = frozenset()
        """With which the worker has a connection, by their places in the head's list."""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on requests to the worker."""
        return self._requests.feed(data, self)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on replies of the worker."""
        passed = self._answers.feed(data, self)
        self._budget.spend(MESSAGE_SECONDS * self._answers.began)
        return passed

    def pause(self, now: float) -> float:
        """Return the seconds to wait: a worker may report progress every few seconds, not all the time."""
        return self._budget.pause(now)

    # Requests.

    def _free(self, data: bytes | memoryview, at: int, _size: int, _identity: int) -> None:
        assert self._absent is not None
        self._absent.freed(*_FREE.unpack_from(data, at))

    def _write(self, data: bytes | memoryview, at: int, size: int, _identity: int) -> None:
        assert self._absent is not None
        buffer, _row, offset = _WRITE.unpack_from(data, at)
        self._absent.written(buffer, offset, size - _WRITE.size)

    def _load(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        count = _count(wire.LOAD_ENTRY, size)
        asked = (
            AskedWeight(digest, length, buffer, offset, length)
            for buffer, _kind, offset, length, digest in wire.LOAD_ENTRY.iter_unpack(
                memoryview(data)[at : at + size]
            )
        )
        self._note(identity, count, asked)

    def _load_parts(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        parts = _count(wire.LOAD_PART, size)
        asked = (
            AskedWeight(digest, piece * count, buffer, offset, (count - 1) * stride + piece)
            for buffer, _kind, offset, digest, _whole, _first, piece, count, stride, _ in (
                wire.LOAD_PART.iter_unpack(memoryview(data)[at : at + size])
            )
        )
        self._note(identity, parts, asked)

    def _note(self, identity: int, count: int, entries: Iterable[AskedWeight]) -> None:
        """Keep what a request asks for until it is answered."""
        if identity in self._asked:
            raise refused("an id that is in use")
        if len(self._asked) >= MAX_UNANSWERED:
            raise refused(f"more than {MAX_UNANSWERED} requests without an answer")
        if self._asked_count + count > MAX_WEIGHTS_ASKED:
            self._asked[identity] = None
            if self._absent is not None:
                self._absent.uncounted()
            return
        weights = tuple(entries)
        if self._absent is not None:
            self._absent.asked(weights)
        self._asked[identity] = weights
        self._asked_count += count

    # Answers.

    def _progress(self, _data: bytes | memoryview, _at: int, _size: int, _identity: int) -> None:
        self._budget.spend(PROGRESS_WEIGHT)

    def _met(self, data: bytes | memoryview, at: int, size: int, _identity: int) -> None:
        body = memoryview(data)[at : at + size - size % _PLACE.size]
        self.neighbours = frozenset(place for (place,) in _PLACE.iter_unpack(body))

    def _loaded(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        entries = self._asked.pop(identity, None)
        if entries is None:
            return
        self._asked_count -= len(entries)
        for entry, result in zip(entries, bytes(data[at : at + size]), strict=False):
            if result and self._absent is not None:
                self._absent.missed(entry)
            if result < len(wire.LOAD_RESULTS):
                why = wire.LOAD_RESULTS[result].replace("-", "_")
                self._placed(entry.digest, entry.size, why if result else "")


def _count(entry: Struct, size: int) -> int:
    """Return the number of entries in so many bytes. Raises RemoteProtocolError."""
    if size % entry.size:
        raise refused("a part of an entry")
    return size // entry.size


_LOADS = {
    wire.LOAD: Look(WHOLE, MeshHeadView._load),
    wire.LOAD_PARTS: Look(WHOLE, MeshHeadView._load_parts),
}
_REQUESTS = Kinds(HEAD, _LOADS, noted=_ASKS)
_WRITES = {
    wire.WRITE: Look(_WRITE.size, MeshHeadView._write),
    wire.FREE: Look(_FREE.size, MeshHeadView._free),
}
_REQUESTS_OF_WEIGHTS = Kinds(HEAD, _LOADS | _WRITES, noted=_ASKS)
_LOOKED_ANSWERS = {
    wire.LOADED: Look(WHOLE, MeshHeadView._loaded),
    wire.MET: Look(WHOLE, MeshHeadView._met),
    wire.PROGRESS: Look(0, MeshHeadView._progress),
}
_ANSWERS = Kinds(MESH_SERVER, _LOOKED_ANSWERS, noted=(wire.DATA,))
