"""The place of a hostile head: the one buffer that a mesh-server gave it, and tensors that it names there."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from meshd.rpc import mesh_protocol as wire

from tests.native.schema import OPERATIONS

BUFFER, ROOM = 1, 4 << 20
COMPUTE = 16  # the flag
NUMBERS = {operation.name: number for number, operation in enumerate(OPERATIONS)}
F32, Q4_0, I32, I64 = (wire.TYPES.index(name) for name in ("f32", "q4_0", "i32", "i64"))
_BYTES = {I64: 8}


@dataclass(frozen=True, slots=True)
class Tensor:
    """A TENSOR; which one of its graph it is, its place there says."""

    offset: int
    ne: tuple[int, ...]
    nb: tuple[int, ...]
    kind: int = F32
    buffer: int = BUFFER
    operation: int = 0
    flags: int = COMPUTE
    parameters: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    viewed: int = 0
    view_offset: int = 0

    def encode(self) -> bytes:
        """As in a GRAPH."""
        parameters = [*self.parameters, *[0] * (16 - len(self.parameters))]
        sources = [*self.sources, *[0] * (10 - len(self.sources))]
        return wire.TENSOR.pack(
            *(self.buffer, self.kind, self.offset, *self.ne, *self.nb, self.operation, self.flags),
            *(*parameters, *sources, self.viewed, 1, self.view_offset, b"name"),
        )


def tensor(at: int, *ne: int, kind: int = F32, **other: object) -> Tensor:
    """Without gaps, `at` bytes behind the buffer's beginning."""
    shape = (*ne, 1, 1, 1)[:4]
    strides = [_BYTES.get(kind, 4)]
    for size in shape[:3]:
        strides.append(strides[-1] * size)
    return replace(Tensor(at, shape, tuple(strides), kind), **other)  # type: ignore[arg-type]


def message(
    number: int, *fields: int, rest: bytes = b"", size: int | None = None, identity: int = 7
) -> bytes:
    """`size`: what it says of itself."""
    body = wire.MESSAGES[number].body.pack(*fields) + rest
    return wire.HEADER.pack(len(body) if size is None else size, number, 0, identity) + body


def graph(
    tensors: Sequence[Tensor], nodes: Sequence[int], *, uid: int = 0, device: int = 0, **counts: int
) -> bytes:
    """`count`, `total`: nodes and tensors that it says it has."""
    rest = struct.pack(f"<{len(nodes)}I", *nodes) + b"".join(one.encode() for one in tensors)
    said = (counts.get("count", len(nodes)), counts.get("total", len(tensors)))
    return message(wire.GRAPH, uid, device, *said, 0, rest=rest)


def node(name: str, ne: tuple[int, ...], /, *sources: Tensor, uid: int = 0, **other: object) -> bytes:
    """A graph of one operation on these sources; its result is in the last MiB, or as `other` says."""
    numbers = tuple(range(1, len(sources) + 1))
    fields = {"operation": NUMBERS[name], "sources": numbers, **other}
    return graph([*sources, tensor(3 << 20, *ne, **fields)], [len(sources)], uid=uid)  # type: ignore[arg-type]


def write(one: Tensor, data: bytes) -> bytes:
    """Sets the tensor's bytes, or what lies behind as well."""
    return message(wire.WRITE, one.buffer, 0, one.offset, rest=data)


@dataclass(frozen=True, slots=True)
class Case:
    """The bytes that the head says, and words of the reason for which the server ends."""

    why: str
    said: Callable[[], bytes]
