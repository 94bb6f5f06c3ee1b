"""Write what a hostile head says to a mesh-server, and why that has to end for it.

Each case is a connection that has been welcomed and has one buffer of ROOM bytes, all zero but for what the
case sets. CASES are those that the server refuses, SERVED those that look hostile and do no harm.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace

from meshd.rpc import mesh_protocol as wire

from tests.e2e.hostile_indices import INDICES
from tests.e2e.hostile_stage import (
    BUFFER,
    I32,
    NUMBERS,
    Q4_0,
    ROOM,
    Case,
    Tensor,
    graph,
    message,
    node,
    tensor,
    write,
)
from tests.native.schema import KINDS, OPERATIONS

UNKNOWN_TYPE = len(wire.TYPES)
ALL_ONES = (1 << 32) - 1
HUGE = 1 << 40


def _four(at: int = 0, **other: object) -> Tensor:
    return tensor(at, 4, **other)  # type: ignore[arg-type]


def _sum(**result: object) -> bytes:
    return node("ADD", (4,), _four(), _four(16), **result)  # type: ignore[arg-type]


def _other_operand(**fields: object) -> bytes:
    return node("ADD", (4,), _four(), _four(16, **fields))


def _joined(**other: object) -> bytes:
    return node("CONCAT", (8,), _four(), _four(16), **other)  # type: ignore[arg-type]


def _chain(length: int) -> bytes:
    """Each the source of the next one: who follows sources by recursion goes deep."""
    links = [_four(16 * (n % 2), operation=NUMBERS["UNARY"], sources=(n,)) for n in range(1, length)]
    return graph([_four(), *links], range(1, length))


def _wide() -> bytes:
    """Rows that all lie at the same place: 4 KiB of the buffer, 4 GiB to work on."""
    rows = tensor(0, 1024, 1 << 20, nb=(4, 0, 0, 0))
    return node("MUL_MAT", (1 << 20, 1), rows, tensor(1 << 20, 1024, 1))


def _experts() -> bytes:
    """A row of a table for each expert and each id: 2 GiB of it for what is 1 MiB here."""
    experts, values = tensor(0, 4, 1, 1 << 16), tensor(1 << 20, 4, 1, 1)
    return node("MUL_MAT_ID", (1, 1 << 13, 1), experts, values, tensor(2 << 20, 1 << 13, 1, kind=I32))


def _view(*, of: int = 1, at: int = 64, offset: int = 64) -> bytes:
    part = _four(at, operation=NUMBERS["VIEW"], viewed=of, view_offset=offset, sources=(1,))
    return graph([tensor(0, 64), part], [1])


def _again(*between: bytes) -> bytes:
    return _sum(uid=3) + b"".join(between) + message(wire.COMPUTE, 3, 0, 0)


_OPERATIONS = {
    "the operation behind the last": Case("no operation", lambda: _sum(operation=len(OPERATIONS))),
    "an operation of 2^32 - 1": Case("no operation", lambda: _sum(operation=ALL_ONES)),
    "a unary function behind the last": Case(
        "or kind of it", lambda: node("UNARY", (4,), _four(), parameters=(len(KINDS["unary"]),))
    ),
    "a gated function below the first": Case(
        "or kind of it", lambda: node("GLU", (4,), tensor(0, 8), parameters=(-1,))
    ),
}

_TENSORS = {
    "a result behind the buffer": Case("behind the end", lambda: _sum(offset=ROOM)),
    "a result at the end of all memory": Case("behind the end", lambda: _sum(offset=(1 << 64) - 16)),
    "a source behind the buffer": Case("behind the end", lambda: _other_operand(offset=ROOM - 8)),
    "a result in no buffer": Case("ADD has no data", lambda: _sum(buffer=0)),
    "a source in no buffer": Case("no data on this device", lambda: _other_operand(buffer=0)),
    "a buffer that is none": Case("no buffer 3735928559", lambda: _sum(buffer=0xDEADBEEF)),
    "an address between two floats": Case("cannot be at its place", lambda: _sum(offset=ROOM - 63)),
    "an unknown type": Case("no type", lambda: _sum(kind=UNKNOWN_TYPE)),
    "half a block": Case("a row that q4_0 cannot have", lambda: _sum(kind=Q4_0, ne=(33, 1, 1, 1))),
    "2^126 elements": Case("a dimension that no tensor has", lambda: _sum(ne=(ALL_ONES,) * 4)),
    "no elements, and a product that overflows": Case(
        "a dimension that no tensor has", lambda: _sum(ne=(ALL_ONES,) * 3 + (0,))
    ),
    "no elements, each size possible": Case(
        "too large", lambda: _sum(ne=((1 << 31) - (1 << 17),) * 3 + (0,), nb=(4, 4, 4, 4))
    ),
    "a product that overflows": Case("too large", lambda: _sum(ne=(1 << 16,) * 4, nb=(4, 0, 0, 0))),
}

_STRIDES = {
    "elements that overlap": Case(
        "a dimension that no tensor has", lambda: _other_operand(nb=(2, 16, 16, 16))
    ),
    "a row outside, by its stride": Case(
        "too large", lambda: _other_operand(ne=(4, 2, 1, 1), nb=(4, (1 << 62), 0, 0))
    ),
    "gaps in a row of a product": Case(
        "is_row",
        lambda: node("MUL_MAT", (2, 1), tensor(0, 4, 2, nb=(8, 32, 64, 64)), tensor(1 << 20, 4, 1)),
    ),
    "gaps between rows that are scaled": Case(
        "SCALE refused", lambda: node("SCALE", (4, 2), tensor(0, 4, 2, nb=(4, 64, 128, 128)))
    ),
    "a result with gaps": Case("is_result", lambda: _sum(nb=(8, 32, 32, 32))),
    "a result over half a source": Case("ADD refused", lambda: _sum(offset=8)),
    "a result over what is still read": Case("CONCAT refused", lambda: _joined(offset=0)),
    "rows without room between": Case("cannot be at its place", _wide),
}

_GRAPHS = {
    "a node that is not there": Case("no tensor of its graph", lambda: graph([_four()], [7])),
    "no nodes, and no tensors": Case("a graph has from 1", lambda: graph([], [])),
    "no nodes": Case("a graph has from 1", lambda: graph([_four()], [])),
    "a node twice": Case("there twice", lambda: graph([_four(), _four(16)], [1, 1])),
    "no sources": Case("ADD refused", lambda: _sum(sources=())),
    "one source of two": Case("ADD refused", lambda: _sum(sources=(1,))),
    "a source too many": Case("ADD refused", lambda: _sum(sources=(1, 2, 1))),
    "a source that is not there": Case("one behind it", lambda: _sum(sources=(1, 9))),
    "itself as a source": Case("one behind it", lambda: _sum(sources=(1, 4))),
    "a view of itself": Case("a view of itself", lambda: _view(of=2)),
    "a view of what is not there": Case("one behind it", lambda: _view(of=9)),
    "a view elsewhere than it says": Case("is no view", lambda: _view(offset=1 << 40)),
    "a view outside": Case("behind the end", lambda: _view(at=ROOM, offset=ROOM)),
    "more nodes than were sent": Case("", lambda: graph([_four()], [0], count=ALL_ONES)),
    "more tensors than were sent": Case("shorter than it says", lambda: graph([_four()], [0], total=200)),
    "fewer tensors than were sent": Case(
        "longer than it says", lambda: graph([_four(), _four()], [0], total=1)
    ),
    "a device that is not there": Case("a device that there is not", lambda: graph([_four()], [0], device=7)),
    "an empty message": Case("", lambda: wire.HEADER.pack(0, wire.GRAPH, 0, 7)),
    "a chain too long": Case("", lambda: _chain(wire.GRAPH_TENSORS + 1)),
}

_SHAPES = {
    "a product of rows of other lengths": Case(
        "MUL_MAT refused", lambda: node("MUL_MAT", (2, 1), tensor(0, 4, 2), tensor(64, 8, 1))
    ),
    "a product with a larger result": Case(
        "MUL_MAT refused", lambda: node("MUL_MAT", (200, 1), tensor(0, 4, 2), tensor(64, 4, 1))
    ),
    "a product of stacks that do not fit": Case(
        "MUL_MAT refused", lambda: node("MUL_MAT", (2, 1, 3), tensor(0, 4, 2, 2), tensor(64, 4, 1, 3))
    ),
    "experts that need a table of 2 GiB": Case("MUL_MAT_ID refused", _experts),
    "more dimensions turned than a row has": Case(
        "ROPE refused",
        lambda: node("ROPE", (4, 1, 1), tensor(0, 4, 1, 1), tensor(64, 1, kind=I32), parameters=(0, 64)),
    ),
    "a mask shorter than its rows": Case(
        "SOFT_MAX refused", lambda: node("SOFT_MAX", (64, 4), tensor(0, 64, 4), tensor(1 << 20, 4, 1))
    ),
    "attention to fewer values than keys": Case(
        "FLASH_ATTN_EXT refused",
        lambda: node(
            "FLASH_ATTN_EXT", (64, 1, 1), tensor(0, 64, 1), tensor(1024, 64, 32), tensor(1 << 20, 64, 1)
        ),
    ),
    "joined along a seventh dimension": Case("CONCAT refused", lambda: _joined(parameters=(7,))),
    "put behind the end": Case(
        "SET refused", lambda: node("SET", (4,), _four(), _four(16), parameters=(16, 16, 16, 1 << 30))
    ),
    "an image with a step of 0": Case(
        "IM2COL refused",
        lambda: node("IM2COL", (1, 4), tensor(0, 1), tensor(64, 4), parameters=(0, 0, 0, 0, 1, 1)),
    ),
    "a pool of no size": Case(
        "POOL_2D refused", lambda: node("POOL_2D", (4, 4), tensor(0, 4, 4), parameters=(0,) * 7)
    ),
    "a margin below 0": Case("PAD refused", lambda: node("PAD", (4,), tensor(0, 8), parameters=(-4,))),
    "an order that is none": Case(
        "ARGSORT refused", lambda: node("ARGSORT", (4,), _four(), kind=I32, parameters=(9,))
    ),
}

_READ = (BUFFER, 16)
_MESSAGES = {
    "a graph of 4 GiB": Case("", lambda: message(wire.GRAPH, 0, 0, 1, 1, 0, size=ALL_ONES)),
    "names of 4 GiB": Case("", lambda: message(wire.LOAD, size=ALL_ONES)),
    "data of 4 GiB": Case("", lambda: message(wire.WRITE, BUFFER, 0, 0, size=ALL_ONES)),
    "data shorter than its fields": Case("", lambda: wire.HEADER.pack(8, wire.WRITE, 0, 7) + bytes(8)),
    "HELLO of 4 GiB": Case("", lambda: message(wire.HELLO, wire.VERSION, size=ALL_ONES)),
    "HELLO again": Case("HELLO comes first", lambda: message(wire.HELLO, wire.VERSION, rest=b"9.9.9")),
    "an answer of 4 GiB": Case("", lambda: message(wire.READ, BUFFER, ALL_ONES, 0, 0, 0)),
    "read behind the end": Case("behind the end", lambda: message(wire.READ, *_READ, ROOM - 8, 0, 0)),
    "read before the buffer": Case(
        "behind the end", lambda: message(wire.READ, *_READ, (1 << 64) - 16, 0, 0)
    ),
    "written behind the end": Case("behind the end", lambda: write(_four(ROOM - 16), bytes(17))),
    "filled behind the end": Case("behind the end", lambda: message(wire.FILL, BUFFER, 0, 0, HUGE)),
    "copied over its own end": Case("overlap", lambda: message(wire.COPY, BUFFER, BUFFER, 0, 8, 16)),
    "copied behind the end": Case(
        "behind the end", lambda: message(wire.COPY, BUFFER, BUFFER, 0, ROOM - 8, 16)
    ),
    "copied from a buffer that is none": Case("no buffer 9", lambda: message(wire.COPY, 9, BUFFER, 0, 0, 16)),
    "computed again without a graph": Case("not kept", lambda: message(wire.COMPUTE, 3, 0, 0)),
    "computed again when its buffer is gone": Case("not kept", lambda: _again(message(wire.FREE, BUFFER))),
    "computed again with its inputs read behind": Case(
        "not kept", lambda: _again() + message(wire.COMPUTE, 4, 0, 0)
    ),
    "freed twice": Case("no buffer 1", lambda: message(wire.FREE, BUFFER) * 2),
    "a buffer that is there": Case("ALLOCATE names", lambda: message(wire.ALLOCATE, BUFFER, 0, 64)),
    "a buffer on no device": Case("ALLOCATE names", lambda: message(wire.ALLOCATE, 2, 7, 64)),
    "a push to nobody": Case("no neighbour 3", lambda: message(wire.PUSH, 3, BUFFER, 16, 0, 0, 1)),
    "a part of an entry": Case("LOAD of a part", lambda: message(wire.LOAD, rest=bytes(12))),
    "a load behind the end": Case(
        "behind the end",
        lambda: message(wire.LOAD, rest=wire.LOAD_ENTRY.pack(BUFFER, 0, ROOM - 8, 16, bytes(32))),
    ),
    "an answer": Case("", lambda: message(wire.DATA, rest=bytes(16))),
    "a request without an id": Case("no id", lambda: message(wire.SYNC, identity=0)),
    "a message that is none": Case("no message 99", lambda: wire.HEADER.pack(0, 99, 0, 7)),
}

CASES: Mapping[str, Case] = {
    **_OPERATIONS,
    **_TENSORS,
    **_STRIDES,
    **_GRAPHS,
    **_SHAPES,
    **INDICES,
    **_MESSAGES,
}

SERVED: Mapping[str, Callable[[], bytes]] = {
    "the longest chain": lambda: _chain(wire.GRAPH_TENSORS),
}


def every_operation(number: int, sources: int) -> bytes:
    """One node of this operation that has so many sources, whatever it needs."""
    given = [tensor(64 * place, 4) for place in range(1, sources + 1)]
    made = tensor(3 << 20, 4, operation=number, sources=tuple(range(1, sources + 1)))
    return graph([*given, made], [sources])


def right_sum() -> bytes:
    """Two tensors with values, and their sum, which is at 32."""
    one, two = _four(), _four(16)
    values = write(one, struct.pack("<4f", 1, 2, 3, 4)) + write(two, struct.pack("<4f", 10, 20, 30, 40))
    total = replace(_four(32), operation=NUMBERS["ADD"], sources=(1, 2))
    return values + graph([one, two, total], [2]) + message(wire.READ, BUFFER, 16, 32, 0, 0)
