"""A worker's view of the connection between a head and the mesh-server that it has leased.

mesh-server checks all that its head asks, and ends with what it refuses (docs/native-backend.md). Here bytes
are only split into messages. Seen are the memory that the server holds, weights that are worth keeping, and
when something is computed.
"""

from collections.abc import Mapping

from meshd.rpc import mesh_protocol as wire
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
from meshd.rpc.mesh_buffers import MeshBuffers
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.rpc.reading_budget import ENTRY_SECONDS, MESSAGE_SECONDS, NodeReading, ReadingBudget

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
        self._buffers = MeshBuffers()
        self._budget = ReadingBudget(reading)
        self._asked: dict[int, tuple[int, int]] = {}  # by ids: ALLOCATE and its buffer, or LOAD and 0

    @property
    def held_bytes(self) -> int:
        """The bytes received and not passed on."""
        return self._requests.held_bytes + self._answers.held_bytes

    def memory_held(self) -> Mapping[int, int]:
        """Return the bytes of buffers that the server has allocated and nobody has freed, by device."""
        return self._buffers.held()

    def pause(self, now: float) -> float:
        """Return the seconds that the head's next bytes have to wait (reading_budget.py)."""
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
        if not self._buffers.ask(buffer, device, room):
            raise refused(f"more than {wire.BUFFERS} buffers")

    def _free(self, data: bytes | memoryview, at: int, _size: int, _identity: int) -> None:
        self._buffers.forget(*_FREE.unpack_from(data, at))

    def _load(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        assert self._keeping is not None
        if size % wire.LOAD_ENTRY.size:
            raise refused("a part of an entry")
        self._ask(identity, wire.LOAD)
        self._budget.spend(ENTRY_SECONDS * (size // wire.LOAD_ENTRY.size))
        self._keeping.asked(identity, memoryview(data)[at : at + size])

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
        self._buffers.answer(
            self._answer(identity, wire.ALLOCATE), made=_ALLOCATED.unpack_from(data, at) == (1,)
        )

    def _loaded(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        assert self._keeping is not None
        self._answer(identity, wire.LOAD)
        self._keeping.answered(identity, bytes(data[at : at + size]))
        self._look_at_writes(self._keeping)

    def _answer(self, identity: int, number: int) -> int:
        """Return the buffer of the request with this id. Raises RemoteProtocolError if there is none."""
        asked, buffer = self._asked.pop(identity, (0, 0))
        if asked != number:
            raise refused(f"an answer to {wire.MESSAGES[number].name} that nobody asked for")
        return buffer


_COMPUTES = (wire.GRAPH, wire.COMPUTE, wire.READ, wire.PUSH, wire.TAKE)
_ALLOCATES = {wire.ALLOCATE: Look(_ALLOCATE.size, MeshLeaseView._allocate)}
_ALLOCATES[wire.FREE] = Look(_FREE.size, MeshLeaseView._free)
_REQUESTS = Kinds(HEAD, _ALLOCATES, noted=_COMPUTES)
_LOADS = _ALLOCATES | {wire.LOAD: Look(WHOLE, MeshLeaseView._load)}
_REQUESTS_TO_KEEP = Kinds(HEAD, _LOADS, noted=_COMPUTES)
_WRITES = _LOADS | {wire.WRITE: Look(_WRITE.size, MeshLeaseView._write)}
_REQUESTS_OF_WEIGHTS = Kinds(HEAD, _WRITES, noted=_COMPUTES)
_MAKES = {wire.ALLOCATED: Look(_ALLOCATED.size, MeshLeaseView._allocated)}
_ANSWERS = Kinds(MESH_SERVER, _MAKES, noted=(wire.DATA,))
_MISSES = {wire.LOADED: Look(WHOLE, MeshLeaseView._loaded)}
_ANSWERS_TO_KEEP = Kinds(MESH_SERVER, _MAKES | _MISSES, noted=(wire.DATA,))
