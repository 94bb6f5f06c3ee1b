"""The pending work of an rpc-server for one connection, derived from the bytes that pass.

It works off requests in order, so whatever it answers or pushes settles all that came before. A request whose
answer has not come, and a push that has not left, are *owed*; a tensor that it waits for is another server's
to send. Nothing is judged or changed here: that is the inspector's part, which sees every byte first.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from meshd.base.peer_limits import ARRIVED, OWED
from meshd.rpc import protocol as rpc
from meshd.rpc.frames import HEAD, NEIGHBOUR, WORKER, Messages

_PUSHES = frozenset({rpc.PUSH_TENSOR, rpc.PUSH_TENSOR_F16})
_TAKES = frozenset({rpc.TAKE_TENSOR, rpc.TAKE_TENSOR_F16})
_GRAPHS = frozenset({rpc.GRAPH_COMPUTE, rpc.GRAPH_RECOMPUTE})
_ANSWER, _PUSH, _TAKE = range(3)


class ConnectionInspector(Protocol):
    """As tunnel.interface has it."""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...
    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview: ...


class Step(NamedTuple):
    """What a server is at: bytes of the requests for it, and whether a graph is among them."""

    size: int
    graph: bool


class Debt(NamedTuple):
    """All up to the first answer or push that is owed, whatever the server may be waiting for."""

    size: int
    graph: bool
    inputs: int
    """Of `size`, the bytes that are no graph."""
    takes: int
    """Tensors of other servers."""
    is_push: bool


@dataclass(frozen=True, slots=True)
class _PendingEntry:
    kind: int
    token: int
    size: int  # of the requests since the entry before, this one's included
    graph: bool
    graph_bytes: int = 0  # of `size`
    load: bool = False


class Arrived:
    """Tensors that other servers have sent to one server, by token; the newest ARRIVED."""

    def __init__(self) -> None:
        self._tokens: OrderedDict[int, None] = OrderedDict()
        self.bytes = 0

    def add(self, token: int) -> None:
        """The last of its bytes goes to the server now."""
        self._tokens[token] = None
        if len(self._tokens) > ARRIVED.most:
            self._tokens.popitem(last=False)

    def take(self, token: int) -> None:
        """The server has it."""
        self._tokens.pop(token, None)

    def __contains__(self, token: int) -> bool:
        return token in self._tokens


class Owed:
    """One connection. Implements tunnel.interface.Inspector by `inspector`, and tunnel.interface.Flow."""

    def __init__(
        self, inspector: ConnectionInspector, *, arrived: Arrived, graph_done: Callable[[int], None]
    ) -> None:
        """`graph_done` gets the size of each step with a graph when it is done."""
        self._inspector = inspector
        self._arrived = arrived
        self._graph_done = graph_done
        self._requests = Messages(rpc.REQUEST.size, HEAD)
        self._answers = Messages(rpc.ANSWER.size, WORKER)
        self._entries: deque[_PendingEntry] = deque()
        self._size = 0  # of requests since the last entry
        self._graph = False
        self._graph_bytes = 0
        self._target_waits = False
        self.peer_waits_now = False
        """The peer takes no more of what the server has said."""
        self.greeted = False
        """The server has said something."""
        self.settled = 0
        """Grows with each answer and each push,"""
        self.done = 0
        """and also each time the server takes more after it took nothing."""
        self.loads = 0
        """Grows with each answer to a request for weights."""
        self.done_inputs = 0
        """Bytes of the step that was done last, its graphs left out."""
        self.bytes = 0
        """Of answers."""

    # Inspector.

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Requests. Raises RemoteProtocolError as the inspector does."""
        passed = self._inspector.from_peer(data)
        if len(passed):
            self._requests.feed(passed, self._look_request)
        return passed

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """Answers. Raises RemoteProtocolError as the inspector does."""
        passed = self._inspector.to_peer(data)
        if len(passed):
            self.bytes += len(passed)
            self._answers.feed(passed, self._look_answer)
        return passed

    # Flow.

    def target_waits(self, waits: bool) -> None:
        """The server takes no more requests now, or does again."""
        if self._target_waits and not waits:
            self.done += 1
        self._target_waits = waits

    def peer_waits(self, waits: bool) -> None:
        """The peer takes no more answers now, or does again."""
        self.peer_waits_now = waits

    # Answers owed.

    @property
    def step(self) -> Step | None:
        """What the server is at; None: nothing, or it waits for a tensor that another server has to send."""
        size, graph = 0, False
        for entry in self._entries:
            if entry.kind == _TAKE and entry.token not in self._arrived:
                return None
            size, graph = size + entry.size, graph or entry.graph
            if entry.kind != _TAKE:
                return Step(size, graph)
        if self._target_waits or not self._answers.between:
            return Step(size + self._size, graph or self._graph)
        return None

    @property
    def count(self) -> int:
        """Answers and pushes that are owed, and tensors to be taken."""
        return len(self._entries)

    @property
    def waits_for(self) -> int | None:
        """Token of the tensor that has to be taken before anything else is done; None: there is none."""
        first = self._entries[0] if self._entries else None
        return first.token if first is not None and first.kind == _TAKE else None

    def is_to_push(self, token: int) -> bool:
        """Whether this tensor is owed."""
        return any(entry.kind == _PUSH and entry.token == token for entry in self._entries)

    @property
    def debt(self) -> Debt | None:
        """What the server owes to somebody; None: nothing."""
        size, graph, graph_bytes, takes = 0, False, 0, 0
        for entry in self._entries:
            size, graph = size + entry.size, graph or entry.graph
            graph_bytes += entry.graph_bytes
            if entry.kind != _TAKE:
                return Debt(size, graph, size - graph_bytes, takes, entry.kind == _PUSH)
            takes += 1
        if self._target_waits or not self._answers.between:
            size, graph_bytes = size + self._size, graph_bytes + self._graph_bytes
            return Debt(size, graph or self._graph, size - graph_bytes, takes, False)
        return None

    def pushed(self, token: int) -> bool:
        """A tensor leaves for another server; says whether it was owed here."""
        return self._settle(lambda entry: entry.kind == _PUSH and entry.token == token)

    def _settle(self, is_last: Callable[[_PendingEntry], bool]) -> bool:
        """Everything up to the first such entry is done, if there is one; an answer may be on its way."""
        last = next((number for number, entry in enumerate(self._entries) if is_last(entry)), None)
        if last is None:
            return False
        done = [self._entries.popleft() for _ in range(last + 1)]
        if done[-1].kind == _PUSH:
            self._entries.extendleft(entry for entry in reversed(done) if entry.kind == _ANSWER)
        for entry in done:
            if entry.kind == _TAKE:
                self._arrived.take(entry.token)
        self.settled += 1
        self.done += 1
        self.loads += any(entry.load for entry in done)
        if any(entry.graph for entry in done):
            self.done_inputs = sum(entry.size - entry.graph_bytes for entry in done)
            self._graph_done(sum(entry.size for entry in done))
        return True

    def _look_request(self, data: bytes | memoryview, at: int, have: int) -> int:
        number, size = rpc.REQUEST.unpack_from(data, at)
        command = rpc.COMMANDS.get(number)
        body = at + rpc.REQUEST.size + rpc.TENSOR_BYTES
        token, kind = 0, _ANSWER
        if number in _PUSHES:
            if have < rpc.REQUEST.size + rpc.TENSOR_BYTES + rpc.PUSH.size:
                return -(rpc.REQUEST.size + rpc.TENSOR_BYTES + rpc.PUSH.size)
            _offset, _size, token, _number, _zero = rpc.PUSH.unpack_from(data, body)
            kind = _PUSH
        elif number in _TAKES:
            if have < rpc.REQUEST.size + rpc.TENSOR_BYTES + rpc.TAKE.size:
                return -(rpc.REQUEST.size + rpc.TENSOR_BYTES + rpc.TAKE.size)
            _offset, taken, token = rpc.TAKE.unpack_from(data, body)
            kind = _TAKE
            self._size += taken
        self._size += size
        if number in _GRAPHS:
            self._graph, self._graph_bytes = True, self._graph_bytes + size
        if kind != _ANSWER or (command is not None and command.answer != rpc.NO_ANSWER):
            load = number == rpc.SET_TENSOR_GGUF
            self._add(_PendingEntry(kind, token, self._size, self._graph, self._graph_bytes, load))
        return rpc.REQUEST.size + int(size)

    def _add(self, entry: _PendingEntry) -> None:
        if len(self._entries) < OWED.most:
            self._entries.append(entry)
            self._size, self._graph, self._graph_bytes = 0, False, 0

    def _look_answer(self, data: bytes | memoryview, at: int, _have: int) -> int:
        (size,) = rpc.ANSWER.unpack_from(data, at)
        self.greeted = True
        self._settle(lambda entry: entry.kind == _ANSWER)  # none is left of HELLO, which has up to three
        return rpc.ANSWER.size + int(size)


class Outward:
    """What a server pushes to one other. Implements Inspector and Flow of tunnel.interface."""

    def __init__(self, pushed: Callable[[int], object]) -> None:
        self._pushed = pushed
        self._messages = Messages(rpc.REQUEST.size, NEIGHBOUR)
        self.peer_waits_now = False
        """The other server takes nothing more."""
        self.bytes = 0

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """All of it passes."""
        self.bytes += len(data)
        self._messages.feed(data, self._look)
        return data

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        """All of it passes."""
        return data

    def target_waits(self, waits: bool) -> None:
        """Its one answer is never waited for."""

    def peer_waits(self, waits: bool) -> None:
        """The other server takes no more now, or does again."""
        self.peer_waits_now = waits

    def _look(self, data: bytes | memoryview, at: int, have: int) -> int:
        number, size = rpc.REQUEST.unpack_from(data, at)
        if number == rpc.PEER_DATA and size >= rpc.PEER_DATA_HEAD_BYTES:
            if have < rpc.REQUEST.size + rpc.PEER_DATA_HEAD_BYTES:
                return -(rpc.REQUEST.size + rpc.PEER_DATA_HEAD_BYTES)
            (token,) = rpc.U64.unpack_from(data, at + rpc.REQUEST.size)
            self._pushed(token)
        return rpc.REQUEST.size + int(size)
