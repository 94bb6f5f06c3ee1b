"""What a head and a mesh-server may say to each other: a pure filter for both directions of a connection.

Requests are judged before they go on: each is one of the protocol, stays within the buffers that this head
made, and names devices, graphs and neighbours that there are. Whether an operation can have tensors of those
shapes is left to the server. Layouts, limits and lists: mesh_protocol.py.
"""

from collections.abc import Callable, Mapping

from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import HEAD, MAX_UNANSWERED, MESH_SERVER, Messages, Seen, refused, unseen
from meshd.rpc.judging_budget import ENTRY_TENSORS, MESSAGE_TENSORS, SHAPE_TENSORS, JudgingBudget
from meshd.rpc.mesh_buffers import MeshBuffers
from meshd.rpc.mesh_graph import Offered, check_graph, check_inside, type_layout
from meshd.rpc.mesh_keeping import MeshKeeping

_VALUE_BYTES, _HALF_BYTES = 4, 2  # of a value in a row, as F32 and as a half
_WRITE_HEAD_BYTES = wire.HEADER.size + wire.MESSAGES[wire.WRITE].body.size

Judge = Callable[["MeshFirewall", bytes | memoryview, int, int], int]
"""Looks at a request's body, at an offset and of a size. Returns what is to be known when the answer comes:
its size if the request decides on that, a buffer, or 0. Raises RemoteProtocolError."""


class MeshFirewall:
    """Implements tunnel.interface.Inspector for the server's side: the peer is the head.

    Raises RemoteProtocolError for what may not pass, and then for everything. Holds one message, but not the
    data of a WRITE or an answer to READ; what BUFFERS, STORED_GRAPHS and MAX_UNANSWERED allow; nothing else.
    """

    def __init__(
        self, *, memory: int | None = None, keeping: MeshKeeping | None = None, seen: Seen = unseen
    ) -> None:
        """`memory`: most bytes of buffers together, where the server itself has no limit.

        `keeping` is told of tensors that are asked for by content, and of those that are sent; `seen` of
        every message.
        """
        self._seen = seen
        self.answered = 0  # bytes that the worker's program has said
        self._memory = memory
        self._keeping = keeping
        self._requests = Messages(wire.HEADER.size, HEAD)
        self._answers = Messages(wire.HEADER.size, MESH_SERVER)
        self._greeted = False
        self._offered: Offered | None = None  # what WELCOME said
        self._buffers = MeshBuffers()
        self._graphs: dict[int, dict[int, None]] = {}  # of each device the uids that it keeps, oldest first
        self._budget = JudgingBudget()
        self._unanswered: dict[int, tuple[int, int]] = {}  # by their ids: number of the request, and said

    @property
    def held_bytes(self) -> int:
        """Received and not handed on."""
        return self._requests.held_bytes + self._answers.held_bytes

    def memory_held(self) -> Mapping[int, int]:
        """Bytes of buffers that the server has made and nobody has freed, by device."""
        return self._buffers.held()

    def pause(self, now: float) -> float:
        """How many seconds the head's next bytes have to wait, at a time of one clock (judging_budget.py)."""
        return self._budget.pause(now)

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Requests. See Inspector."""
        if self._keeping is not None:
            self._keeping.more(data)
        return self._requests.feed(data, self._look_request)

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Answers. See Inspector."""
        self.answered += len(data)
        return self._answers.feed(data, self._look_answer)

    # Requests.

    def _look_request(self, data: bytes | memoryview, at: int, have: int) -> int:
        message, size, identity = look_header(data, at, "head")
        if not identity:
            raise refused(f"{message.name} without an id")
        if self._greeted == (message.number == wire.HELLO):
            raise refused("HELLO comes first, and once")
        if self._offered is None and message.number != wire.HELLO:
            raise refused(f"{message.name} before WELCOME")
        needed = _WRITE_HEAD_BYTES if message.number == wire.WRITE else wire.HEADER.size + size
        if have < needed:
            return -needed
        self._budget.spend(MESSAGE_TENSORS)
        try:
            said = _JUDGES[message.number](self, data, at + wire.HEADER.size, size)
        except RemoteProtocolError as error:
            raise refused(f"{message.name}: {error.what}") from None
        if message.answer:
            if identity in self._unanswered:
                raise refused(f"{message.name}: an id that is in use")
            if len(self._unanswered) >= MAX_UNANSWERED:
                raise refused(f"more than {MAX_UNANSWERED} requests without an answer")
            self._unanswered[identity] = message.number, said
        if self._keeping is not None:
            self._keep(
                self._keeping, message.number, identity, memoryview(data)[at : at + wire.HEADER.size + size]
            )
        self._seen(message.number)
        return wire.HEADER.size + size

    def _keep(self, keeping: MeshKeeping, number: int, identity: int, message: memoryview) -> None:
        """A request that may pass, as far as it is there."""
        if number == wire.LOAD:
            keeping.asked(identity, message[wire.HEADER.size :])
        elif number == wire.WRITE:
            size, *_ = wire.HEADER.unpack_from(message)
            buffer, row, offset = _fields(wire.WRITE, message, wire.HEADER.size)
            # weights come as they are: half rows are none of a tensor that was missed
            keeping.sent(buffer, offset, 0 if row else size - wire.MESSAGES[wire.WRITE].body.size)
            keeping.more(message[_WRITE_HEAD_BYTES:])

    def _hello(self, _data: bytes | memoryview, _at: int, _size: int) -> int:
        self._greeted = True  # the server judges version and release, and can say what it has
        return 0

    def _allocate(self, data: bytes | memoryview, at: int, _size: int) -> int:
        buffer, device, size = _fields(wire.ALLOCATE, data, at)
        self._check_device(device)
        if not buffer or buffer in self._buffers.sizes:
            raise refused("a number that is not free")
        if len(self._buffers.sizes) >= wire.BUFFERS:
            raise refused(f"more than {wire.BUFFERS} buffers")
        asked = self._buffers.asked_bytes
        if self._memory is not None and asked + size > self._memory:
            raise refused(f"{size} bytes more than {asked}, of {self._memory} lent")
        self._buffers.ask(buffer, device, size)
        return buffer

    def _free(self, data: bytes | memoryview, at: int, _size: int) -> int:
        (buffer,) = _fields(wire.FREE, data, at)
        self._check_inside(buffer, 0, 0)
        self._buffers.forget(buffer)
        self._graphs.clear()  # as the server does: they may lie in this buffer
        return 0

    def _fill(self, data: bytes | memoryview, at: int, _size: int) -> int:
        buffer, value, offset, count = _fields(wire.FILL, data, at)
        self._check_inside(buffer, offset, count)
        if value > 255:
            raise refused("more than a byte")
        return 0

    def _write(self, data: bytes | memoryview, at: int, size: int) -> int:
        buffer, row, offset = _fields(wire.WRITE, data, at)
        self._check_inside(buffer, offset, _bytes_in_buffer(size - wire.MESSAGES[wire.WRITE].body.size, row))
        return 0

    def _read(self, data: bytes | memoryview, at: int, _size: int) -> int:
        buffer, count, offset, row, zero = _fields(wire.READ, data, at)
        _check_zero(zero)
        _check_piece(count)
        self._check_inside(buffer, offset, count)
        return _bytes_on_wire(count, row)

    def _copy(self, data: bytes | memoryview, at: int, _size: int) -> int:
        source, target, start, to, count = _fields(wire.COPY, data, at)
        self._check_inside(source, start, count)
        self._check_inside(target, to, count)
        if source == target and start < to + count and to < start + count:
            raise refused("places that overlap")
        return 0

    def _graph(self, data: bytes | memoryview, at: int, size: int) -> int:
        uid, device, nodes, tensors, zero = _fields(wire.GRAPH, data, at)
        _check_zero(zero)
        self._check_device(device)
        assert self._offered is not None
        body = memoryview(data)[at + wire.MESSAGES[wire.GRAPH].body.size : at + size]
        self._budget.spend(len(body) // wire.TENSOR.size)
        shapes = check_graph(body, nodes, tensors, self._buffers.sizes, self._offered)
        self._budget.spend(SHAPE_TENSORS * shapes)
        if uid:
            kept = self._graphs.setdefault(device, {})
            kept.pop(uid, None)
            kept[uid] = None
            if len(kept) > wire.STORED_GRAPHS:
                del kept[next(iter(kept))]
        return 0

    def _compute(self, data: bytes | memoryview, at: int, _size: int) -> int:
        uid, device, zero = _fields(wire.COMPUTE, data, at)
        _check_zero(zero)
        if uid not in self._graphs.get(device, ()):
            raise refused("a graph that is not kept")
        return 0

    def _sync(self, _data: bytes | memoryview, _at: int, _size: int) -> int:
        return 0

    def _load(self, data: bytes | memoryview, at: int, size: int) -> int:
        assert self._offered is not None
        if size % wire.LOAD_ENTRY.size:
            raise refused("a part of an entry")
        self._budget.spend(ENTRY_TENSORS * (size // wire.LOAD_ENTRY.size))
        for entry in range(at, at + size, wire.LOAD_ENTRY.size):
            buffer, kind, offset, count, _hash = wire.LOAD_ENTRY.unpack_from(data, entry)
            type_layout(kind, self._offered)
            self._check_inside(buffer, offset, count)
        return size // wire.LOAD_ENTRY.size

    def _push(self, data: bytes | memoryview, at: int, _size: int) -> int:
        neighbour, buffer, count, row, offset, _token = _fields(wire.PUSH, data, at)
        _check_piece(count)
        _bytes_on_wire(count, row)
        self._check_inside(buffer, offset, count)
        if self._offered is None or neighbour not in self._offered.neighbours:
            raise refused(f"neighbour {neighbour}, which there is not")
        return 0

    def _check_inside(self, buffer: int, offset: int, size: int) -> None:
        check_inside(self._buffers.sizes, buffer, offset, size)

    def _check_device(self, device: int) -> None:
        if self._offered is None or device >= self._offered.devices:
            raise refused(f"device {device}, which there is not")

    # Answers.

    def _look_answer(self, data: bytes | memoryview, at: int, have: int) -> int:
        message, size, identity = look_header(data, at, "worker")
        if message.number == wire.FAILED:  # to any request, also one that has no answer
            return wire.HEADER.size + size
        if message.number == wire.PROGRESS and self._offered is not None and not identity:
            return wire.HEADER.size + size
        number, said = self._unanswered.get(identity, (0, 0))
        if not number or wire.MESSAGES[number].answer != message.number:
            raise refused(f"{message.name} that nobody asked for")
        if number in (wire.READ, wire.LOAD) and size != said:
            raise refused(f"{message.name} of {size} bytes, not {said}")
        if number != wire.READ and have < wire.HEADER.size + size:
            return -(wire.HEADER.size + size)
        if number == wire.HELLO:
            self._offered = read_welcome(data, at + wire.HEADER.size, size)
        elif number == wire.LOAD and self._keeping is not None:
            body = at + wire.HEADER.size
            self._keeping.answered(identity, bytes(data[body : body + size]))
        elif number == wire.ALLOCATE:
            made = _fields(wire.ALLOCATED, data, at + wire.HEADER.size) == (1,)
            self._buffers.answer(said, made=made)
        del self._unanswered[identity]
        self._seen(message.number)
        return wire.HEADER.size + size


def read_welcome(data: bytes | memoryview, at: int, size: int) -> Offered:
    """The body of a WELCOME. Raises RemoteProtocolError."""
    version, *counts = _fields(wire.WELCOME, data, at)
    if version != wire.VERSION:
        raise refused(f"version {version} of the protocol")
    message = wire.MESSAGES[wire.WELCOME]
    places, end = [], at + message.body.size
    for count, rest in zip(counts, message.rest, strict=True):
        if count > rest.most:
            raise refused(f"WELCOME with {count} {rest.name}")
        places.append((end, count))
        end += count * rest.item_bytes
    if end != at + size:
        raise refused(f"WELCOME of {size} bytes")
    return Offered(counts[0], *(_numbers(data, *place) for place in places[1:]))


def look_header(data: bytes | memoryview, at: int, sender: str) -> tuple[wire.RpcMessage, int, int]:
    """Message, bytes of its body, id. Raises RemoteProtocolError for what this sender may not send."""
    size, number, zero, identity = wire.HEADER.unpack_from(data, at)
    message = wire.MESSAGES.get(number)
    if message is None or message.sender != sender:
        raise refused(f"message {number}")
    if zero:
        raise refused(f"{message.name}: a reserved field is not 0")
    if not message.body.size <= size <= message.most:
        raise refused(f"{message.name} of {size} bytes")
    return message, size, identity


def _fields(number: int, data: bytes | memoryview, at: int) -> tuple[int, ...]:
    return wire.MESSAGES[number].body.unpack_from(data, at)


def _numbers(data: bytes | memoryview, at: int, count: int) -> frozenset[int]:
    words = bytes(memoryview(data)[at : at + 4 * count])
    return frozenset(int.from_bytes(words[i : i + 4], "little") for i in range(0, len(words), 4))


def _check_zero(zero: int) -> None:
    if zero:
        raise refused("a reserved field is not 0")


def _check_piece(size: int) -> None:
    if size > wire.PIECE_BYTES:
        raise refused("more than a piece")


def _bytes_on_wire(size: int, row: int) -> int:
    """Bytes that so many of a buffer take on the wire: half rows of `row` values, or as they are with 0."""
    if not row:
        return size
    _check_piece(_VALUE_BYTES * row)
    rows, rest = divmod(size, _VALUE_BYTES * row)
    if rest:
        raise refused("a part of a row as half floats")
    return rows * _HALF_BYTES * (row + 1)


def _bytes_in_buffer(size: int, row: int) -> int:
    """The other way. Raises RemoteProtocolError."""
    if not row:
        return size
    _check_piece(_VALUE_BYTES * row)
    rows, rest = divmod(size, _HALF_BYTES * (row + 1))
    if rest:
        raise refused("half floats that are no whole rows")
    values = rows * _VALUE_BYTES * row
    _check_piece(values)
    return values


# Not of the object: with methods bound to it it would be a cycle, and what it holds be freed late.
_JUDGES: Mapping[int, Judge] = {
    wire.HELLO: MeshFirewall._hello,
    wire.ALLOCATE: MeshFirewall._allocate,
    wire.FREE: MeshFirewall._free,
    wire.FILL: MeshFirewall._fill,
    wire.WRITE: MeshFirewall._write,
    wire.READ: MeshFirewall._read,
    wire.COPY: MeshFirewall._copy,
    wire.GRAPH: MeshFirewall._graph,
    wire.COMPUTE: MeshFirewall._compute,
    wire.SYNC: MeshFirewall._sync,
    wire.LOAD: MeshFirewall._load,
    wire.PUSH: MeshFirewall._push,
    wire.TAKE: MeshFirewall._push,
}
