"""Messages of the mesh-server protocol, true or broken, and a talk through its firewall."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_firewall import MeshFirewall
from meshd.rpc.mesh_keeping import MeshKeeping

NUMBERS = {operation.name: number for number, operation in enumerate(wire.OPERATIONS)}
F32, Q4_0 = wire.TYPES.index("f32"), wire.TYPES.index("q4_0")
BUFFER, ROOM = 1, 4096
DEVICES, NEIGHBOURS = 2, (0, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A TENSOR: 4 floats at the beginning of the buffer, unless it says otherwise."""

    buffer: int = BUFFER
    kind: int = F32
    offset: int = 0
    ne: tuple[int, int, int, int] = (4, 1, 1, 1)
    nb: tuple[int, int, int, int] = (4, 16, 16, 16)
    operation: int = NUMBERS["NONE"]
    parameter: int = 0
    sources: tuple[int, ...] = ()
    viewed: int = 0
    view_offset: int = 0

    def encode(self) -> bytes:
        sources = [*self.sources, *([0] * (10 - len(self.sources)))]
        return wire.TENSOR.pack(
            *(self.buffer, self.kind, self.offset, *self.ne, *self.nb, self.operation, 16),
            *(self.parameter, *([0] * 15), *sources, self.viewed, 1, self.view_offset, b"name"),
        )


ADD = Tensor(operation=NUMBERS["ADD"], sources=(1, 2), offset=64)
LEAVES = (Tensor(), Tensor(offset=32))


def message(number: int, *fields: int, rest: bytes = b"", identity: int = 7, zero: int = 0) -> bytes:
    """One with this body, and the size of it in its header."""
    body = wire.MESSAGES[number].body.pack(*fields) + rest
    return wire.HEADER.pack(len(body), number, zero, identity) + body


def hello(release: bytes = b"0.9.4") -> bytes:
    return message(wire.HELLO, wire.VERSION, rest=release, identity=1)


def welcome(
    *,
    version: int = wire.VERSION,
    devices: int = DEVICES,
    operations: Sequence[int] = range(len(wire.OPERATIONS)),
    types: Sequence[int] = range(len(wire.TYPES)),
    neighbours: Sequence[int] = NEIGHBOURS,
    rest: bytes = b"",
) -> bytes:
    lists = b"".join(struct.pack(f"<{len(one)}I", *one) for one in (operations, types, neighbours))
    counts = (devices, len(operations), len(types), len(neighbours))
    rows = bytes(devices * wire.DEVICE.size)
    return message(wire.WELCOME, version, *counts, rest=rows + lists + rest, identity=1)


def allocate(buffer: int = BUFFER, device: int = 0, size: int = ROOM, identity: int = 2) -> bytes:
    return message(wire.ALLOCATE, buffer, device, size, identity=identity)


def allocated(done: int = 1, identity: int = 2) -> bytes:
    return message(wire.ALLOCATED, done, identity=identity)


def write(buffer: int = BUFFER, offset: int = 0, data: bytes = bytes(16), row: int = 0) -> bytes:
    return message(wire.WRITE, buffer, row, offset, rest=data)


def read(
    buffer: int = BUFFER,
    offset: int = 0,
    size: int = 16,
    identity: int = 3,
    *,
    row: int = 0,
    zero: int = 0,
) -> bytes:
    return message(wire.READ, buffer, size, offset, row, zero, identity=identity)


def data(size: int = 16, identity: int = 3) -> bytes:
    return message(wire.DATA, rest=bytes(size), identity=identity)


def graph(
    tensors: Sequence[Tensor] = (*LEAVES, ADD),
    nodes: Sequence[int] = (2,),
    *,
    uid: int = 0,
    device: int = 0,
    zero: int = 0,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """`counts`: of nodes and tensors, other than there are."""
    rest = struct.pack(f"<{len(nodes)}I", *nodes) + b"".join(one.encode() for one in tensors)
    node_count, tensor_count = counts or (len(nodes), len(tensors))
    return message(wire.GRAPH, uid, device, node_count, tensor_count, zero, rest=rest)


def node(operation: str, *sources: int, parameter: int = 0) -> bytes:
    """A graph of this one operation, on two rows."""
    made = Tensor(operation=NUMBERS[operation], sources=sources, offset=64, parameter=parameter)
    return graph((*LEAVES, made))


def compute(uid: int, device: int = 0, zero: int = 0) -> bytes:
    return message(wire.COMPUTE, uid, device, zero)


def load_entry(
    buffer: int = BUFFER, kind: int = F32, offset: int = 0, size: int = 16, digest: bytes = bytes(range(32))
) -> bytes:
    return wire.LOAD_ENTRY.pack(buffer, kind, offset, size, digest)


def load(*entries: bytes, identity: int = 4) -> bytes:
    return message(wire.LOAD, rest=b"".join(entries), identity=identity)


def push(
    number: int = wire.PUSH,
    *,
    neighbour: int = 2,
    buffer: int = BUFFER,
    size: int = 16,
    offset: int = 0,
    row: int = 0,
) -> bytes:
    """Or with another number a TAKE, whose fields are the same."""
    return message(number, neighbour, buffer, size, row, offset, 99)


def pushed(size: int = 16) -> bytes:
    return message(wire.PUSHED, 99, rest=bytes(size), identity=0)


def failed(why: bytes = b"the device failed", identity: int = 5) -> bytes:
    return message(wire.FAILED, rest=why, identity=identity)


def progress(identity: int = 0) -> bytes:
    return message(wire.PROGRESS, 5, 6, 1, 400, 0, 0, identity=identity)


class MeshTalk:
    """A head and a server with a firewall between them; greeted, with one buffer."""

    def __init__(
        self, *, greeted: bool = True, memory: int | None = None, keeping: MeshKeeping | None = None
    ) -> None:
        self.firewall = MeshFirewall(memory=memory, keeping=keeping)
        if greeted:
            self.say(hello())
            self.hear(welcome())
            self.say(allocate())
            self.hear(allocated())

    def say(self, data: bytes) -> bytes:
        """What of it goes on."""
        return bytes(self.firewall.from_peer(data))

    def hear(self, data: bytes) -> bytes:
        return bytes(self.firewall.to_peer(data))
