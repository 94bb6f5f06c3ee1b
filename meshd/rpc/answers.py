"""A server's constant answers, cached so that a client's next request needs no round trip.

Safe to keep are the protocol's version, the number of devices, alignment and largest buffer of each, and what
a tensor of a shape takes; all of it is fixed as long as the server's process lives. Free memory is kept only
until anything is allocated, freed or computed. A patched server tells most of it in a table behind HELLO
(docs/native.md), and a rule for what tensors take; upstream's CPU buffers have none, and a tensor takes its
bytes in them. What that does not settle is asked; and always the base of a buffer, though a patched server
makes that its handle: the worker's firewall must have heard it before it lets tensors in there pass.
"""

import hashlib
import struct
from dataclasses import dataclass

from meshd.rpc import protocol as rpc
from meshd.rpc.tensors import TYPES

MAX_ANSWERS = 16_384  # answers, some 100 bytes each
CHANGES_MEMORY = frozenset({rpc.ALLOC_BUFFER, rpc.FREE_BUFFER, rpc.GRAPH_COMPUTE, rpc.GRAPH_RECOMPUTE})
QUESTIONS = frozenset(
    {rpc.DEVICE_COUNT, rpc.GET_ALIGNMENT, rpc.GET_MAX_SIZE, rpc.GET_DEVICE_MEMORY, rpc.GET_ALLOC_SIZE}
)
_INFO = struct.Struct("<QQQQB")  # alignment, largest buffer, free, total, rule
_MOST_TENSOR_BYTES = 1 << 62  # of a tensor; strides on the wire can make more than fits the answer
_BY_SIZE, _PADDED = 1, 2  # rules (rpc_alloc_rule): exactly the tensor; quantised rows padded to 512 elements
_MAY_EXPAND = frozenset({16, 29, 30, 69, 70, 74})  # operations that may take more (in ggml-backend.cpp)
# of an rpc_tensor, what a size cannot depend on: id, sources' ids, address, name, use count
_BLANKED = (slice(0, 8), slice(124, 204), slice(220, 296))
_SHAPE = struct.Struct("<8xI8x8II")  # type, ne, nb, op
_VIEW = struct.Struct("<204xQ")


@dataclass(frozen=True, slots=True)
class _KnownDevice:
    alignment: int
    largest: int
    rule: int


class KnownAnswers:
    """Of one server process, for all connections of one client to it. Holds at most MAX_ANSWERS answers."""

    def __init__(self, *, plain_sizes: bool = False) -> None:
        """`plain_sizes`: the server has CPUs only, in whose buffers a tensor takes what it has."""
        self._plain_sizes = plain_sizes
        self._kept: dict[bytes, bytes] = {}
        self._memory: dict[bytes, bytes] = {}
        self._devices: tuple[_KnownDevice, ...] = ()
        self.hello = b""
        """The whole body of the server's answer to HELLO, once it is known."""
        self.age = 0
        """Grows with whatever changes the free memory."""

    def changed(self) -> None:
        """Memory is taken or given back."""
        self.age += 1
        self._memory.clear()

    def find(self, number: int, body: bytes) -> bytes | None:
        """The answer to a question, where it is known."""
        if number == rpc.GET_DEVICE_MEMORY:
            return self._memory.get(body)
        told = self._from_table(number, body) if self._devices else self._from_kind(number, body)
        if told is not None:
            return told
        return self._kept.get(_key(number, body))

    def learn(self, number: int, body: bytes, answer: bytes, *, age: int) -> None:
        """The server's answer; `age` is that at which it was asked."""
        if number == rpc.GET_DEVICE_MEMORY:
            if age == self.age and len(self._memory) < rpc.MAX_INFO_DEVICES:
                self._memory[body] = answer
        elif len(self._kept) < MAX_ANSWERS:
            self._kept[_key(number, body)] = answer

    def learn_table(self, table: bytes, *, age: int) -> None:
        """The table of devices behind HELLO."""
        devices = []
        for number, at in enumerate(range(0, len(table), rpc.DEVICE_INFO_BYTES)):
            alignment, largest, free, total, rule = _INFO.unpack_from(table, at)
            devices.append(_KnownDevice(alignment, largest, rule))
            memory = rpc.PAIR64.pack(free, total)
            self.learn(rpc.GET_DEVICE_MEMORY, rpc.U32.pack(number), memory, age=age)
        self._devices = tuple(devices)

    def _from_kind(self, number: int, body: bytes) -> bytes | None:
        if number != rpc.GET_ALLOC_SIZE or not self._plain_sizes:
            return None
        size = _size_by_rule(_BY_SIZE, body)
        return None if size is None else rpc.U64.pack(size)

    def _from_table(self, number: int, body: bytes) -> bytes | None:
        if number == rpc.DEVICE_COUNT:
            return rpc.U32.pack(len(self._devices))
        (index,) = rpc.U32.unpack_from(body)
        if index >= len(self._devices):
            return None  # the server says what it thinks of that
        device = self._devices[index]
        match number:
            case rpc.GET_ALIGNMENT:
                return rpc.U64.pack(device.alignment)
            case rpc.GET_MAX_SIZE:
                return rpc.U64.pack(device.largest)
            case rpc.GET_ALLOC_SIZE:
                size = _size_by_rule(device.rule, body)
                return None if size is None else rpc.U64.pack(size)
        return None


def _size_by_rule(rule: int, body: bytes) -> int | None:
    """What the tensor of GET_ALLOC_SIZE takes, as the patched client reckons it; None where it asks."""
    kind, ne0, ne1, ne2, ne3, nb0, nb1, nb2, nb3, operation = _SHAPE.unpack_from(body, 4)
    if kind not in TYPES or not ne0 * ne1 * ne2 * ne3:
        return None
    block, block_bytes = TYPES[kind]
    rest = (ne1 - 1) * nb1 + (ne2 - 1) * nb2 + (ne3 - 1) * nb3
    size = int(rest + (block_bytes + (ne0 - 1) * nb0 if block == 1 else ne0 // block * nb0))  # ggml_nbytes
    if size >= _MOST_TENSOR_BYTES:
        return None
    if rule == _BY_SIZE:
        return size
    if rule != _PADDED or operation in _MAY_EXPAND:
        return None
    is_view = _VIEW.unpack_from(body, 4) != (0,)
    if block == 1 or is_view or not ne0 % 512:
        return size
    padding: int = (512 - ne0 % 512) // block * block_bytes
    return size + padding


def _key(number: int, body: bytes) -> bytes:
    """Equal for questions with the same answer."""
    if number == rpc.GET_ALLOC_SIZE:
        blank = bytearray(body)
        for at in range(4, len(blank), rpc.TENSOR_BYTES):
            tensor = blank[at : at + rpc.TENSOR_BYTES]
            flags = bytes((any(tensor[0:8]), any(tensor[204:212])))
            for part in _BLANKED:
                tensor[part] = bytes(part.stop - part.start)
            tensor[204:212] = bytes(8)
            tensor[0:2] = flags  # whether it is there, and whether it is a view
            blank[at : at + rpc.TENSOR_BYTES] = tensor
        body = bytes(blank)
    return bytes((number,)) + hashlib.sha256(body).digest()
