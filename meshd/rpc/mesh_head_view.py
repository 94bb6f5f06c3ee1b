"""A head's view of llama-server's connection with a mesh-server: the weights that were sent, and the
neighbours that the worker has. Nothing is held back but WELCOME, MET, LOAD and LOADED; where the head lacks
weights itself, the beginning of WRITE and FREE as well.
"""

from collections.abc import Callable
from struct import Struct

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.absent_weights import AbsentWeights, AskedWeight
from meshd.rpc.frames import (
    HEAD,
    MAX_UNANSWERED,
    MESH_SERVER,
    WHOLE,
    Kinds,
    Look,
    Messages,
    Seen,
    refused,
    unseen,
)
from meshd.rpc.reading_budget import MESSAGE_SECONDS, PROGRESS_WEIGHT, NodeReading, ReadingBudget

Placed = Callable[[bytes, int, str], None]
"""Told of each weight that is asked for by content: hash, bytes, and why it is sent; empty: it is not."""
_Entries = tuple[AskedWeight, ...]
_PLACE = Struct("<I")  # of a neighbour, in the head's list
_WRITE, _FREE = wire.MESSAGES[wire.WRITE].body, wire.MESSAGES[wire.FREE].body
MAX_WEIGHTS_ASKED = 16_384  # weights whose answers have not come; of more nothing is said


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
        self._asked: dict[int, _Entries | None] = {}  # by id of the LOAD; None: of too many, nothing is kept
        self._asked_count = 0
        self._welcomed = self._told_neighbours = False
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
        if size % wire.LOAD_ENTRY.size:
            raise refused("a part of an entry")
        if identity in self._asked:
            raise refused("an id that is in use")
        if len(self._asked) >= MAX_UNANSWERED:
            raise refused(f"more than {MAX_UNANSWERED} requests without an answer")
        count = size // wire.LOAD_ENTRY.size
        if self._asked_count + count > MAX_WEIGHTS_ASKED:
            self._asked[identity] = None
            if self._absent is not None:
                self._absent.uncounted()
            return
        body = memoryview(data)[at : at + size]
        entries = tuple(
            AskedWeight(digest, length, buffer, offset)
            for buffer, _kind, offset, length, digest in wire.LOAD_ENTRY.iter_unpack(body)
        )
        if self._absent is not None:
            self._absent.asked(entries)
        self._asked[identity] = entries
        self._asked_count += count

    # Answers.

    def _progress(self, _data: bytes | memoryview, _at: int, _size: int, _identity: int) -> None:
        self._budget.spend(PROGRESS_WEIGHT)

    def _welcome(self, data: bytes | memoryview, at: int, size: int, _identity: int) -> None:
        if self._welcomed:
            raise refused("a second WELCOME")
        self._welcomed = True
        _check_welcome(data, at, size)

    def _met(self, data: bytes | memoryview, at: int, size: int, _identity: int) -> None:
        if self._told_neighbours:
            raise refused("a second MET")
        self._told_neighbours = True
        if size % _PLACE.size:
            raise refused(f"MET of {size} bytes")
        body = memoryview(data)[at : at + size]
        self.neighbours = frozenset(place for (place,) in _PLACE.iter_unpack(body))

    def _loaded(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        if identity not in self._asked:
            raise refused("LOADED that nobody asked for")
        entries = self._asked.pop(identity)
        if entries is None:
            return
        self._asked_count -= len(entries)
        results = bytes(data[at : at + size])
        if len(entries) != len(results) or max(results, default=0) >= len(wire.LOAD_RESULTS):
            raise refused("LOADED with other results than were asked for")
        for entry, result in zip(entries, results, strict=True):
            if result and self._absent is not None:
                self._absent.missed(entry)
            why = wire.LOAD_RESULTS[result].replace("-", "_")
            self._placed(entry.digest, entry.size, why if result else "")


def _check_welcome(data: bytes | memoryview, at: int, size: int) -> None:
    """Raise RemoteProtocolError for a WELCOME of another version, or of another size than it says."""
    message = wire.MESSAGES[wire.WELCOME]
    version, *counts = message.body.unpack_from(data, at)
    if version != wire.VERSION:
        raise refused(f"version {version} of the protocol")
    end = at + message.body.size
    for count, rest in zip(counts, message.rest, strict=True):
        if count > rest.most:
            raise refused(f"WELCOME with {count} {rest.name}")
        end += count * rest.item_bytes
    if end != at + size:
        raise refused(f"WELCOME of {size} bytes")


_ASKS = (wire.GRAPH, wire.COMPUTE, wire.READ)
_LOADS = {wire.LOAD: Look(WHOLE, MeshHeadView._load)}
_REQUESTS = Kinds(HEAD, _LOADS, noted=_ASKS)
_WRITES = {
    wire.WRITE: Look(_WRITE.size, MeshHeadView._write),
    wire.FREE: Look(_FREE.size, MeshHeadView._free),
}
_REQUESTS_OF_WEIGHTS = Kinds(HEAD, _LOADS | _WRITES, noted=_ASKS)
_LOOKED_ANSWERS = {
    wire.WELCOME: Look(WHOLE, MeshHeadView._welcome),
    wire.LOADED: Look(WHOLE, MeshHeadView._loaded),
    wire.MET: Look(WHOLE, MeshHeadView._met),
    wire.PROGRESS: Look(0, MeshHeadView._progress),
}
_ANSWERS = Kinds(MESH_SERVER, _LOOKED_ANSWERS, noted=(wire.DATA,))
