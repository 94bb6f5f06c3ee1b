"""A worker's views of the connections of the mesh-server that it lends, with its head and other workers.

mesh-server checks all that it is asked, and ends with what it refuses (docs/native-design.md). Here bytes
are only split into messages. Seen are the memory that the server holds, weights that are worth keeping, and
when something is computed.
"""

from collections import Counter
from collections.abc import Mapping

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import (
    ENTRY_SECONDS,
    HEAD,
    MAX_UNANSWERED,
    MESH_SERVER,
    MESSAGE_SECONDS,
    NEIGHBOUR,
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
from meshd.rpc.mesh_keeping import MeshKeeping

_ALLOCATE, _ALLOCATED = wire.MESSAGES[wire.ALLOCATE].body, wire.MESSAGES[wire.ALLOCATED].body
_FREE, _WRITE = wire.MESSAGES[wire.FREE].body, wire.MESSAGES[wire.WRITE].body


class MeshLeaseView:
    """Implements tunnel.interface.Inspector for the server's side: the peer is the head.

    Raises RemoteProtocolError for what is no message, and then for everything. Holds one LOAD or LOADED, and
    what BUFFERS and MAX_UNANSWERED allow.
    """

    def __init__(
        self,
        *,
        keeping: MeshKeeping | None = None,
        seen: Seen = unseen,
        reading: NodeReading | None = None,
    ) -> None:
        """Start a connection. `keeping` gets tensors requested by content, and those that are sent.

        `seen` gets computations, their inputs and results. `reading`: the node's budget; None: one for
        this connection alone.
        """
        self.answered = 0  # bytes that the worker's program has said
        self._keeping = keeping
        self._requests = Messages(_REQUESTS if keeping is None else _REQUESTS_TO_KEEP, seen)
        self._answers = Messages(_ANSWERS if keeping is None else _ANSWERS_TO_KEEP, seen)
        self._buffers: dict[int, tuple[int, int]] = {}  # that were asked for, by number: device, bytes
        self._made: set[int] = set()  # those of them that the server has said to have
        self._budget = ReadingBudget(reading)
        self._asked: dict[int, tuple[int, int]] = {}  # by ids: ALLOCATE and its buffer, or LOAD and 0

    @property
    def held_bytes(self) -> int:
        """The bytes received and not passed on."""
        return self._requests.held_bytes + self._answers.held_bytes

    def memory_held(self) -> Mapping[int, int]:
        """Return the bytes of buffers that the server has allocated and nobody has freed, by device."""
        held: Counter[int] = Counter()
        for number in self._made:
            device, size = self._buffers[number]
            held[device] += size
        return held

    def pause(self, now: float) -> float:
        """Return the seconds that the head's next bytes have to wait (NodeReading)."""
        return self._budget.pause(now)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on the head's requests."""
        if self._keeping is not None:
            self._keeping.more(data)
        passed = self._requests.feed(data, self)
        self._budget.spend(MESSAGE_SECONDS * self._requests.began)
        return passed

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on the server's replies."""
        self.answered += len(data)
        return self._answers.feed(data, self)

    # Requests.

    def _allocate(self, data: bytes | memoryview, at: int, _size: int, identity: int) -> None:
        buffer, device, room = _ALLOCATE.unpack_from(data, at)
        self._ask(identity, wire.ALLOCATE, buffer)
        if len(self._buffers) >= wire.BUFFERS:
            raise refused(f"more than {wire.BUFFERS} buffers")
        # of a number that is in use the first request counts: the server refuses the second one
        self._buffers.setdefault(buffer, (device, room))

    def _free(self, data: bytes | memoryview, at: int, _size: int, _identity: int) -> None:
        self._forget(*_FREE.unpack_from(data, at))

    def _forget(self, buffer: int) -> None:
        self._buffers.pop(buffer, None)
        self._made.discard(buffer)

    def _load(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        assert self._keeping is not None
        if size % wire.LOAD_ENTRY.size:
            raise refused("a part of an entry")
        self._ask(identity, wire.LOAD)
        self._budget.spend(ENTRY_SECONDS * (size // wire.LOAD_ENTRY.size))
        self._keeping.asked(identity, memoryview(data)[at : at + size])

    def _load_parts(self, _data: bytes | memoryview, _at: int, size: int, identity: int) -> None:
        if size % wire.LOAD_PART.size:
            raise refused("a part of an entry")
        # of a tensor that only parts of come nothing is kept
        self._ask(identity, wire.LOAD_PARTS)
        self._budget.spend(ENTRY_SECONDS * (size // wire.LOAD_PART.size))

    def _write(self, data: bytes | memoryview, at: int, size: int, _identity: int) -> None:
        keeping = self._keeping
        assert keeping is not None
        buffer, row, offset = _WRITE.unpack_from(data, at)
        # weights come as they are: half rows are none of a tensor that was missed
        keeping.sent(buffer, offset, 0 if row else size - _WRITE.size)
        keeping.more(memoryview(data)[at + _WRITE.size : at + size])
        self._look_at_writes(keeping)

    def _look_at_writes(self, keeping: MeshKeeping) -> None:
        """Inspect WRITEs only while a tensor is to come: each token causes several."""
        self._requests.kinds = _REQUESTS_OF_WEIGHTS if keeping.waits else _REQUESTS_TO_KEEP

    def _ask(self, identity: int, number: int, buffer: int = 0) -> None:
        if identity in self._asked:
            raise refused("an id that is in use")
        if len(self._asked) >= MAX_UNANSWERED:
            raise refused(f"more than {MAX_UNANSWERED} requests without an answer")
        self._asked[identity] = number, buffer

    # Answers.

    def _allocated(self, data: bytes | memoryview, at: int, _size: int, identity: int) -> None:
        buffer = self._answer(identity, wire.ALLOCATE)
        if _ALLOCATED.unpack_from(data, at) != (1,):
            self._forget(buffer)
        elif buffer in self._buffers:  # not freed meanwhile
            self._made.add(buffer)

    def _loaded(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        assert self._keeping is not None
        if self._asked.get(identity) == (wire.LOAD_PARTS, 0):
            del self._asked[identity]
            return
        self._answer(identity, wire.LOAD)
        self._keeping.answered(identity, bytes(data[at : at + size]))
        self._look_at_writes(self._keeping)

    def _answer(self, identity: int, number: int) -> int:
        """Return the buffer of the request with this id. Raises RemoteProtocolError if there is none."""
        asked, buffer = self._asked.pop(identity, (0, 0))
        if asked != number:
            raise refused(f"an answer to {wire.MESSAGES[number].name} that nobody asked for")
        return buffer


_COMPUTES = (wire.GRAPH, wire.COMPUTE, wire.READ, wire.PUSH, wire.TAKE, wire.SUM)
_ALLOCATES = {wire.ALLOCATE: Look(_ALLOCATE.size, MeshLeaseView._allocate)}
_ALLOCATES[wire.FREE] = Look(_FREE.size, MeshLeaseView._free)
_REQUESTS = Kinds(HEAD, _ALLOCATES, noted=_COMPUTES)
_LOADS = _ALLOCATES | {
    wire.LOAD: Look(WHOLE, MeshLeaseView._load),
    wire.LOAD_PARTS: Look(0, MeshLeaseView._load_parts),
}
_REQUESTS_TO_KEEP = Kinds(HEAD, _LOADS, noted=_COMPUTES)
_WRITES = _LOADS | {wire.WRITE: Look(_WRITE.size, MeshLeaseView._write)}
_REQUESTS_OF_WEIGHTS = Kinds(HEAD, _WRITES, noted=_COMPUTES)
_MAKES = {wire.ALLOCATED: Look(_ALLOCATED.size, MeshLeaseView._allocated)}
_ANSWERS = Kinds(MESH_SERVER, _MAKES, noted=(wire.DATA,))
_MISSES = {wire.LOADED: Look(WHOLE, MeshLeaseView._loaded)}
_ANSWERS_TO_KEEP = Kinds(MESH_SERVER, _MAKES | _MISSES, noted=(wire.DATA,))


class MeshPushFilter:
    """Lets pushes between the mesh-servers of two workers pass, both ways, and nothing else.

    The head tells the receiving server which pushes to take, and where to put them; that server compares
    tokens and sizes. Implements tunnel.interface.Inspector for either side. Raises RemoteProtocolError, and
    then always. Holds less than a header for each direction; what a message carries flows through.
    """

    def __init__(
        self, *, arrived: Seen = unseen, left: Seen = unseen, reading: NodeReading | None = None
    ) -> None:
        """Start a connection. `arrived` gets each message of the neighbour, `left` each one for it; see
        MeshLeaseView.
        """
        self._from_peer = Messages(_PUSHES, arrived)
        self._to_peer = Messages(_PUSHES, left)
        self._budget = ReadingBudget(reading)

    @property
    def held_bytes(self) -> int:
        """The bytes received and not passed on."""
        return self._from_peer.held_bytes + self._to_peer.held_bytes

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on the neighbour's pushes."""
        passed = self._from_peer.feed(data, self)
        self._budget.spend(MESSAGE_SECONDS * self._from_peer.began)
        return passed

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Pass on our pushes."""
        return self._to_peer.feed(data, self)

    def pause(self, now: float) -> float:
        """Return the seconds to wait: the budget also bounds a flood of empty messages."""
        return self._budget.pause(now)


_PUSHES = Kinds[MeshPushFilter](NEIGHBOUR, {}, noted=(wire.PUSHED,))
