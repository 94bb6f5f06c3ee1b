"""Counts what llama.cpp's RPC says on one connection: round trips, and bytes by what they are for. Pure.

It only listens: whatever it does not understand is counted as `control`, never refused. Numbers and layouts
are those of ggml/src/ggml-rpc/ggml-rpc.cpp of the pinned upstream, protocol 7.0, little endian. A request:
command (1 byte), size (8), body; an answer: size (8), body; answers come in the order of the requests.
"""

from collections import deque
from dataclasses import dataclass

from meshd.rpc.probe import RPC_ANSWER, RPC_REQUEST

FREE_BUFFER, BUFFER_CLEAR, SET_TENSOR = 4, 5, 6
GET_TENSOR, GRAPH_COMPUTE, INIT_TENSOR = 8, 10, 12
GRAPH_RECOMPUTE, MEMSET_TENSOR = 16, 17
NO_ANSWER = frozenset(
    {FREE_BUFFER, BUFFER_CLEAR, SET_TENSOR, GRAPH_COMPUTE, INIT_TENSOR, GRAPH_RECOMPUTE, MEMSET_TENSOR}
)
_NAME_OFFSET, _NAME_BYTES = 228, 64  # of the name in rpc_tensor, with which SET_TENSOR begins
_WEIGHT_ENDS = (b".weight", b".bias")
_COMPUTE = (GRAPH_COMPUTE, GRAPH_RECOMPUTE)


@dataclass(slots=True)
class RpcCounts:
    """Sums over connections; bytes of both directions, with headers.

    `round_trips`: how often an answer had to come before the next request was sent, whatever was sent
    together before it. `weights`: of tensors that are weights, `tensors`: of others (activations, masks,
    results), `graphs`: what is to be computed. All else is `control`.
    """

    connections: int = 0
    requests: int = 0
    round_trips: int = 0
    weights: int = 0
    tensors: int = 0
    graphs: int = 0
    control: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of all kinds."""
        return self.weights + self.tensors + self.graphs + self.control


class RpcListener:
    """One connection. Tell it all bytes of both directions in the order in which they pass."""

    def __init__(self, counts: RpcCounts) -> None:
        self._counts = counts
        self._left = 0  # bytes of this request that are still to come
        self._kind = "control"
        self._header = bytearray()
        self._answers: deque[str] = deque()
        self._answer_left = 0
        self._answer_kind = "control"
        self._answer_header = bytearray()
        self._asked = False
        counts.connections += 1

    def sent(self, data: bytes) -> list[int]:
        """Count the client's data; return where in it requests for computing begin (0: there, or
        before it).
        """
        self._asked = True
        computing = []
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                self._add(self._kind, step)
                at += step
                continue
            begin = at - len(self._header)
            at += self._take(self._header, data[at:], self._header_bytes())
            if len(self._header) == self._header_bytes() and self._request():
                computing.append(max(begin, 0))
        return computing

    def _header_bytes(self) -> int:
        """Return how much of a request tells what its bytes are: with SET_TENSOR, up to the tensor's name."""
        header = self._header
        if len(header) < RPC_REQUEST.size or header[0] != SET_TENSOR:
            return RPC_REQUEST.size
        size: int = RPC_REQUEST.unpack_from(header)[1]
        return RPC_REQUEST.size + min(size, _NAME_OFFSET + _NAME_BYTES)

    def _request(self) -> bool:
        """Handle a complete header; return True if it requests computing."""
        header = bytes(self._header)
        self._header.clear()
        command, size = RPC_REQUEST.unpack_from(header)
        self._left = RPC_REQUEST.size + size - len(header)
        self._kind = _kind_of(command, header)
        self._counts.requests += 1
        self._add(self._kind, len(header))
        if command not in NO_ANSWER:
            self._answers.append("tensors" if command == GET_TENSOR else "control")
        return command in _COMPUTE

    def answered(self, data: bytes) -> None:
        """Count the server's data."""
        if self._asked and data:
            self._counts.round_trips += 1
            self._asked = False
        at = 0
        while at < len(data):
            if self._answer_left:
                step = min(self._answer_left, len(data) - at)
                self._answer_left -= step
                self._add(self._answer_kind, step)
                at += step
                continue
            at += self._take(self._answer_header, data[at:], RPC_ANSWER.size)
            if len(self._answer_header) == RPC_ANSWER.size:
                (self._answer_left,) = RPC_ANSWER.unpack(self._answer_header)
                self._answer_header.clear()
                self._answer_kind = self._answers.popleft() if self._answers else "control"
                self._add(self._answer_kind, RPC_ANSWER.size)

    @staticmethod
    def _take(header: bytearray, data: bytes, whole: int) -> int:
        step = min(whole - len(header), len(data))
        header += data[:step]
        return step

    def _add(self, kind: str, count: int) -> None:
        setattr(self._counts, kind, getattr(self._counts, kind) + count)


def _kind_of(command: int, header: bytes) -> str:
    if command in _COMPUTE:
        return "graphs"
    if command != SET_TENSOR:
        return "control"
    name = header[RPC_REQUEST.size + _NAME_OFFSET :].split(b"\0")[0]
    return "weights" if name.endswith(_WEIGHT_ENDS) else "tensors"
