"""What a head may send to an rpc-server: a pure filter for both directions of one connection.

Requests are judged before they go on; of the answers it learns what the server handed out, so that
requests may name that and nothing else. Layouts and lists: protocol.py. A request costs some microseconds, a
graph some milliseconds.
"""

from collections import deque
from collections.abc import Callable, Mapping

from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.frames import HEAD, MAX_UNANSWERED, WORKER, Messages
from meshd.rpc.graph import check_asked_ops, check_graph
from meshd.rpc.missed_tensors import TensorKeeping
from meshd.rpc.tensors import Buffer, Remembered, check_half_rows, check_load_entry, find, place_of, refused
from meshd.wire.limits import MAX_NEIGHBOUR

MAX_BUFFERS = 1024
MAX_BUFFER_BYTES = rpc.HANDLE_SPACE
_SET_BYTES = rpc.REQUEST.size + rpc.SET_TENSOR_HEAD_BYTES

Judge = Callable[["Firewall", bytes | memoryview, int, int], int]
"""Looks at a request's body, at an offset and of a size. Returns what is to be known when the answer comes:
its length if the request decides on that, a buffer, or 0. Raises RemoteProtocolError."""

Lesson = Callable[["Firewall", bytes | memoryview, int, int], None]
"""Reads a whole answer at an offset; gets what the request's judge returned."""


class Firewall:
    """Implements tunnel.interface.Inspector for the server's side: the peer is the client.

    Raises RemoteProtocolError for what may not pass, and then for everything. Holds a message of at most
    GRAPH_MOST_BYTES, what MAX_BUFFERS and MAX_UNANSWERED allow, nothing else.
    """

    def __init__(self, *, memory: int | None = None, keeping: TensorKeeping | None = None) -> None:
        """`memory`: most bytes of buffers together, where the server itself has no limit.

        `keeping` is told of tensors that are asked for by content, and of those that are sent.
        """
        self._memory = memory
        self._keeping = keeping
        self._requests = Messages(rpc.REQUEST.size, HEAD)
        self._answers = Messages(rpc.ANSWER.size, WORKER)
        self._buffers: dict[int, Buffer] = {}
        self._unanswered: deque[tuple[int, int, int]] = deque()  # command, bytes of the answer, said
        # Of rpc_tensors whose place was checked, the bytes they have; of SET_TENSORs up to their data, the
        # bytes they are: each token sends those of the last one.
        self._judged = Remembered()
        self._graphs: set[int] = set()  # devices that have one to compute again
        self._greeted = False
        self._features = 0
        self._named = False  # the client has said its session
        self._neighbours: set[int] = set()  # to which the server says that it can push

    @property
    def held_bytes(self) -> int:
        """Received and not handed on."""
        return self._requests.held_bytes + self._answers.held_bytes

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Requests. See Inspector."""
        if self._keeping is not None and self._keeping.wanted:
            self._keeping.more(data)
        return self._requests.feed(data, self._look_request)

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Answers. See Inspector."""
        return self._answers.feed(data, self._look_answer)

    # Requests.

    def _look_request(self, data: bytes | memoryview, at: int, have: int) -> int:
        number, size = rpc.REQUEST.unpack_from(data, at)
        if number == rpc.SET_TENSOR and (self._keeping is None or not self._keeping.wanted):
            again = self._judged.get(bytes(data[at : at + _SET_BYTES]))
            if again is not None:
                return again
        command = rpc.COMMANDS.get(number)
        if command is None or command.feature & ~self._features:
            raise refused(f"command {number}")
        if not self._greeted and number != rpc.HELLO:
            raise refused(f"{command.name} before HELLO")
        if size != command.least and not command.least < size <= command.most:
            raise refused(f"{command.name} of {size} bytes")
        needed = rpc.REQUEST.size + (command.held or size)
        if have < needed:
            return -needed
        try:
            said = _JUDGES[number](self, data, at + rpc.REQUEST.size, size) if number in _JUDGES else 0
        except RemoteProtocolError as error:
            raise refused(f"{command.name}: {error.what}") from None
        if command.answer != rpc.NO_ANSWER:
            if len(self._unanswered) >= MAX_UNANSWERED:
                raise refused(f"more than {MAX_UNANSWERED} requests without an answer")
            self._unanswered.append(
                (number, said if command.answer == rpc.BY_REQUEST else command.answer, said)
            )
        return rpc.REQUEST.size + int(size)

    def _hello(self, data: bytes | memoryview, at: int, _size: int) -> int:
        if self._greeted:
            raise refused("sent twice")
        if any(data[at : at + rpc.CAPS_OWN]):
            raise refused("another transport than TCP")
        self._greeted = True
        return rpc.features_of(data, at)

    def _alloc(self, data: bytes | memoryview, at: int, _size: int) -> int:
        _device, size = rpc.ALLOCATE.unpack_from(data, at)
        self._check_room(size)
        return int(size)

    def _alloc_as(self, data: bytes | memoryview, at: int, _size: int) -> int:
        _device, size, handle = rpc.ALLOCATE_AS.unpack_from(data, at)
        self._check_room(size)
        number, rest = divmod(handle, rpc.HANDLE_SPACE)
        if rest or not 0 < number < rpc.HANDLES_OWN or handle in self._buffers:
            raise refused("a handle that is not free")
        self._buffers[handle] = Buffer(size, start=handle)
        return int(handle)

    def _check_room(self, size: int) -> None:
        if size > MAX_BUFFER_BYTES:
            raise refused(f"{size} bytes")
        held = [buffer.size for buffer in self._buffers.values()]
        held += [said for command, _, said in self._unanswered if command == rpc.ALLOC_BUFFER]
        if len(held) >= MAX_BUFFERS:
            raise refused(f"more than {MAX_BUFFERS} buffers")
        if self._memory is not None and sum(held) + size > self._memory:
            raise refused(f"{size} bytes more than {sum(held)}, of {self._memory} lent")

    def _buffer(self, data: bytes | memoryview, at: int, _size: int) -> int:
        (handle,) = rpc.U64.unpack_from(data, at)
        find(handle, self._buffers)
        return int(handle)

    def _free(self, data: bytes | memoryview, at: int, size: int) -> int:
        self._forget(self._buffer(data, at, size))
        return 0

    def _forget(self, handle: int) -> None:
        del self._buffers[handle]
        self._judged.clear()
        self._graphs.clear()  # as the server does: their tensors may lie in this buffer

    def _size_of(self, data: bytes | memoryview, at: int) -> int:
        """Bytes of the rpc_tensor at `at`, which lies in a buffer."""
        key = bytes(data[at : at + rpc.TENSOR_BYTES])
        size = self._judged.get(key)
        if size is None:
            size = place_of(data, at, self._buffers, must_lie=True)
            self._judged.keep(key, size)
        return size

    def _set_tensor(self, data: bytes | memoryview, at: int, size: int) -> int:
        (offset,) = rpc.U64.unpack_from(data, at + rpc.TENSOR_BYTES + 1)
        if offset + size - rpc.SET_TENSOR_HEAD_BYTES > self._size_of(data, at):
            raise refused("beyond the end of the tensor")
        if self._keeping is not None:
            self._keeping.sent(data, at, size)
        start = at - rpc.REQUEST.size
        self._judged.keep(bytes(data[start : start + _SET_BYTES]), rpc.REQUEST.size + size)
        return 0

    def _set_tensor_hash(self, data: bytes | memoryview, at: int, _size: int) -> int:
        (offset,) = rpc.U64.unpack_from(data, at + rpc.TENSOR_BYTES)
        if offset > self._size_of(data, at):
            raise refused("beyond the end of the tensor")
        return 0

    def _region(self, data: bytes | memoryview, at: int, _size: int) -> int:
        offset, count = rpc.REGION.unpack_from(data, at + rpc.TENSOR_BYTES)
        if offset + count > self._size_of(data, at):
            raise refused("beyond the end of the tensor")
        return int(count)

    def _set_half(self, data: bytes | memoryview, at: int, size: int) -> int:
        (offset,) = rpc.U64.unpack_from(data, at + rpc.TENSOR_BYTES + 1)
        check_half_rows(data, at, offset, size - rpc.SET_TENSOR_HEAD_BYTES)
        self._size_of(data, at)
        return 0

    def _copy(self, data: bytes | memoryview, at: int, _size: int) -> int:
        if self._size_of(data, at) != self._size_of(data, at + rpc.TENSOR_BYTES):
            raise refused("tensors of two sizes")
        return 0

    def _init_tensor(self, data: bytes | memoryview, at: int, _size: int) -> int:
        self._size_of(data, at)
        return 0

    def _alloc_size(self, data: bytes | memoryview, at: int, _size: int) -> int:
        for number in range(1 + rpc.MAX_SOURCES):
            place_of(data, at + 4 + number * rpc.TENSOR_BYTES, self._buffers)
        return 0

    def _graph(self, data: bytes | memoryview, at: int, size: int) -> int:
        self._graphs.add(check_graph(data, at, size, self._buffers))
        return 0

    def _recompute(self, data: bytes | memoryview, at: int, _size: int) -> int:
        (device,) = rpc.U32.unpack_from(data, at)
        if device not in self._graphs:
            raise refused("there is no graph")
        return 0

    def _load(self, data: bytes | memoryview, at: int, size: int) -> int:
        (count,) = rpc.U32.unpack_from(data, at)
        if size != rpc.LOAD_HEAD_BYTES + count * rpc.LOAD_ENTRY_BYTES:
            raise refused(f"{count} tensors in {size} bytes")
        for entry in range(at + rpc.LOAD_HEAD_BYTES, at + size, rpc.LOAD_ENTRY_BYTES):
            check_load_entry(data, entry, self._buffers)
        if self._keeping is not None:
            self._keeping.asked(data, at, size)
        return int(count)

    # To and from other servers.

    def _check_peer(self, data: bytes | memoryview, at: int, _size: int) -> int:
        number, zero = rpc.CHECK.unpack_from(data, at)
        if zero or number > MAX_NEIGHBOUR:
            raise refused(f"neighbour {number}")
        return int(number)

    def _push(self, data: bytes | memoryview, at: int, _size: int) -> int:
        offset, size, _token, number, zero = rpc.PUSH.unpack_from(data, at + rpc.TENSOR_BYTES)
        if zero or number not in self._neighbours:
            raise refused(f"neighbour {number}, which was not confirmed")
        self._check_part(data, at, offset, size)
        return 0

    def _take(self, data: bytes | memoryview, at: int, _size: int) -> int:
        offset, size, _token = rpc.TAKE.unpack_from(data, at + rpc.TENSOR_BYTES)
        if not self._named:
            raise refused("before PEER_SESSION")
        self._check_part(data, at, offset, size)
        return 0

    def _check_part(self, data: bytes | memoryview, at: int, offset: int, size: int) -> None:
        if size > rpc.MAX_PEER_DATA_BYTES - rpc.PEER_DATA_HEAD_BYTES:
            raise refused(f"{size} bytes for one message")
        if offset + size > self._size_of(data, at):
            raise refused("beyond the end of the tensor")

    def _session(self, _data: bytes | memoryview, _at: int, _size: int) -> int:
        if self._named:
            raise refused("sent twice")
        self._named = True
        return 0

    # Answers.

    def _look_answer(self, data: bytes | memoryview, at: int, have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        if not self._unanswered:
            raise refused("an answer to nothing")
        number, expected, said = self._unanswered[0]
        row, most = rpc.TABLES.get(expected, (1, 0))
        if size != expected and not (size % row == 0 and size <= most * row and expected in rpc.TABLES):
            raise refused(f"{rpc.COMMANDS[number].name}: an answer of {size} bytes")
        learn = _LESSONS.get(number) if expected not in rpc.TABLES else None
        if learn is not None:
            if have < rpc.ANSWER.size + size:
                return -(rpc.ANSWER.size + int(size))
            learn(self, data, at + rpc.ANSWER.size, said)
        self._unanswered.popleft()
        return rpc.ANSWER.size + int(size)

    def _learn_features(self, data: bytes | memoryview, at: int, said: int) -> None:
        self._features = said & rpc.features_of(data, at + 4)
        if self._features & rpc.FEATURE_INFO:
            self._unanswered.insert(1, (rpc.HELLO, rpc.DEVICES, 0))
            if self._features & rpc.FEATURE_OPS:
                self._unanswered.insert(2, (rpc.HELLO, rpc.WEIGHT_OPS, 0))

    def _learn_buffer(self, data: bytes | memoryview, at: int, _said: int) -> None:
        handle, size = rpc.PAIR64.unpack_from(data, at)
        if handle:
            self._buffers[handle] = Buffer(size)

    def _learn_granted(self, data: bytes | memoryview, at: int, said: int) -> None:
        if rpc.U64.unpack_from(data, at) == (0,) and said in self._buffers:
            self._forget(said)

    def _learn_neighbour(self, data: bytes | memoryview, at: int, said: int) -> None:
        if data[at] == 1:
            self._neighbours.add(said)
        else:
            self._neighbours.discard(said)

    def _learn_loaded(self, data: bytes | memoryview, at: int, said: int) -> None:
        if self._keeping is not None:
            self._keeping.answered(bytes(data[at : at + said]))

    def _learn_base(self, data: bytes | memoryview, at: int, said: int) -> None:
        (start,) = rpc.U64.unpack_from(data, at)
        if said in self._buffers:  # else it was freed meanwhile
            self._buffers[said] = Buffer(self._buffers[said].size, start)
            self._judged.clear()


def _of_half_rows(judge: Judge) -> Judge:
    """The same, of a tensor's half rows, all of them."""

    def judge_half(it: Firewall, data: bytes | memoryview, at: int, size: int) -> int:
        check_half_rows(data, at, *rpc.REGION.unpack_from(data, at + rpc.TENSOR_BYTES))
        return judge(it, data, at, size)

    return judge_half


# Not of the object: with methods bound to it it would be a cycle, and what it holds be freed late.
_JUDGES: Mapping[int, Judge] = {
    rpc.ALLOC_BUFFER: Firewall._alloc,
    rpc.ALLOC_BUFFER_AS: Firewall._alloc_as,
    rpc.BUFFER_GET_BASE: Firewall._buffer,
    rpc.FREE_BUFFER: Firewall._free,
    rpc.BUFFER_CLEAR: Firewall._buffer,
    rpc.SET_TENSOR: Firewall._set_tensor,
    rpc.SET_TENSOR_HASH: Firewall._set_tensor_hash,
    rpc.GET_TENSOR: Firewall._region,
    rpc.COPY_TENSOR: Firewall._copy,
    rpc.GRAPH_COMPUTE: Firewall._graph,
    rpc.INIT_TENSOR: Firewall._init_tensor,
    rpc.GET_ALLOC_SIZE: Firewall._alloc_size,
    rpc.HELLO: Firewall._hello,
    rpc.GRAPH_RECOMPUTE: Firewall._recompute,
    rpc.MEMSET_TENSOR: Firewall._region,
    rpc.SET_TENSOR_GGUF: Firewall._load,
    rpc.PEER_CHECK: Firewall._check_peer,
    rpc.PUSH_TENSOR: Firewall._push,
    rpc.TAKE_TENSOR: Firewall._take,
    rpc.PEER_SESSION: Firewall._session,
    rpc.SUPPORTED_OPS: lambda _it, data, at, size: check_asked_ops(data, at, size),
    rpc.SET_TENSOR_F16: Firewall._set_half,
    rpc.GET_TENSOR_F16: _of_half_rows(Firewall._region),
    rpc.PUSH_TENSOR_F16: _of_half_rows(Firewall._push),
    rpc.TAKE_TENSOR_F16: _of_half_rows(Firewall._take),
}
_LESSONS: Mapping[int, Lesson] = {
    rpc.HELLO: Firewall._learn_features,
    rpc.ALLOC_BUFFER: Firewall._learn_buffer,
    rpc.ALLOC_BUFFER_AS: Firewall._learn_granted,
    rpc.BUFFER_GET_BASE: Firewall._learn_base,
    rpc.PEER_CHECK: Firewall._learn_neighbour,
    rpc.SET_TENSOR_GGUF: Firewall._learn_loaded,
}
