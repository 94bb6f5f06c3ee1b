"""Messages of the mesh-server protocol, true or broken, and a talk that a worker's daemon reads."""

import struct
from collections.abc import Sequence

from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.rpc.mesh_lease_view import MeshLeaseView

from tests.native.schema import OPERATIONS

F32, Q4_0 = wire.TYPES.index("f32"), wire.TYPES.index("q4_0")
BUFFER, ROOM = 1, 4096
DEVICES, NEIGHBOURS = 2, (0, 2)


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
    operations: Sequence[int] = range(len(OPERATIONS)),
    types: Sequence[int] = range(len(wire.TYPES)),
    rest: bytes = b"",
) -> bytes:
    lists = b"".join(struct.pack(f"<{len(one)}I", *one) for one in (operations, types))
    counts = (devices, len(operations), len(types))
    rows = bytes(devices * wire.DEVICE.size)
    return message(wire.WELCOME, version, *counts, rest=rows + lists + rest, identity=1)


def met(*neighbours: int, identity: int = 6, rest: bytes = b"") -> bytes:
    return message(wire.MET, rest=struct.pack(f"<{len(neighbours)}I", *neighbours) + rest, identity=identity)


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


def graph(uid: int = 0, device: int = 0, tensors: int = 3) -> bytes:
    """One node of so many tensors, all of whose fields are 0."""
    rest = struct.pack("<I", tensors - 1) + bytes(tensors * wire.TENSOR.size)
    return message(wire.GRAPH, uid, device, 1, tensors, 0, rest=rest)


def compute(uid: int, device: int = 0, zero: int = 0) -> bytes:
    return message(wire.COMPUTE, uid, device, zero)


def load_entry(
    buffer: int = BUFFER, kind: int = F32, offset: int = 0, size: int = 16, digest: bytes = bytes(range(32))
) -> bytes:
    return wire.LOAD_ENTRY.pack(buffer, kind, offset, size, digest)


def load(*entries: bytes, identity: int = 4) -> bytes:
    return message(wire.LOAD, rest=b"".join(entries), identity=identity)


def load_part(
    buffer: int = BUFFER, offset: int = 0, piece: int = 4, count: int = 3, stride: int = 8
) -> bytes:
    """Pieces of a tensor of 1000 bytes."""
    return wire.LOAD_PART.pack(buffer, F32, offset, bytes(range(32)), 1000, 16, piece, count, stride, 100)


def load_parts(*parts: bytes, identity: int = 8) -> bytes:
    return message(wire.LOAD_PARTS, rest=b"".join(parts), identity=identity)


def add_up(members: int = 5, place: int = 0, size: int = 128) -> bytes:
    return message(wire.SUM, members, place, BUFFER, 32, 0, 0, 0, size, 99)


def summand(size: int = 128) -> bytes:
    return message(wire.SUMMAND, 99, rest=bytes(size), identity=0)


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
    """A head and a server, and a view between them; greeted, with one buffer."""

    def __init__(self, *, keeping: MeshKeeping | None = None) -> None:
        self.view = MeshLeaseView(keeping=keeping)
        self.say(hello())
        self.hear(welcome())
        self.say(allocate())
        self.hear(allocated())

    def say(self, data: bytes) -> bytes:
        """Return the part of `data` that goes on."""
        return bytes(self.view.from_peer(data))

    def hear(self, data: bytes) -> bytes:
        return bytes(self.view.to_peer(data))
