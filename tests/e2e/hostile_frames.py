"""What a hostile client sends to an rpc-server, and how the patched one has to end its connection.

Each case is one connection that has said HELLO and has one buffer of ROOM bytes, all zero but for what the
case sets. CASES are those that the server refuses, SERVED those that look hostile and do no harm.
"""

import struct
from collections.abc import Mapping
from dataclasses import replace

from meshd.rpc import protocol as rpc

from tests.e2e.hostile_indices import INDICES
from tests.e2e.hostile_stage import I32, Q4_0, Q8_K, ROOM, Case, Make, Stage
from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor

ADD, CONCAT, MUL_MAT, MUL_MAT_ID, SCALE, SET, VIEW = 2, 22, 29, 30, 32, 33, 37
SOFT_MAX, ROPE, IM2COL, POOL_2D, PAD, ARGSORT, FLASH_ATTN = 46, 48, 52, 61, 64, 69, 74
MAP_CUSTOM1, MAP_CUSTOM2, MAP_CUSTOM3, CUSTOM = 92, 93, 94, 95  # they call an address in their parameters
COUNT = 101
ABS = 0  # of UNARY
TIB = 1 << 40
CHAIN, LONGER_CHAIN = 200_000, 400_000
_FIRST_SOURCE = 124  # in an rpc_tensor


def _four(s: Stage) -> Tensor:
    """Floats, at the beginning."""
    return s.tensor(1, 0, 4)


def _joined(s: Stage, **other: object) -> bytes:
    return s.node(CONCAT, (8,), _four(s), s.tensor(2, 16, 4), **other)


def _sum(s: Stage, **result: object) -> bytes:
    return s.node(ADD, (4,), _four(s), s.tensor(2, 16, 4), **result)


def _other_operand(s: Stage, **fields: object) -> bytes:
    return s.node(ADD, (4,), _four(s), s.tensor(2, 16, 4, **fields))  # type: ignore[arg-type]


def _chain(s: Stage, length: int) -> bytes:
    """Each the source of the one before: who follows sources by recursion overflows the stack."""
    link = s.tensor(1, 16, 4, op=rpc.UNARY, param=ABS).encode()
    links = bytearray(link * length)
    for number in range(1, length + 1):
        at = (number - 1) * rpc.TENSOR_BYTES
        rpc.U64.pack_into(links, at, number)
        rpc.U64.pack_into(links, at + _FIRST_SOURCE, number + 1 if number < length else 0)
    links[: rpc.TENSOR_BYTES] = s.tensor(1, 0, 4, op=rpc.UNARY, param=ABS, sources=(2,)).encode()
    return talk.request(rpc.GRAPH_COMPUTE, struct.pack("<IIQI", 0, 1, 1, length) + links)


def _circle(s: Stage) -> bytes:
    one = s.tensor(1, 0, 4, op=rpc.UNARY, param=ABS, sources=(2,))
    return talk.graph([one, replace(one, id=2, data=s.base + 16, sources=(1,))], (1,))


def _wide(s: Stage) -> bytes:
    """Rows that all lie at the same place: 4 KiB of the buffer, 4 GiB to work on."""
    rows = s.tensor(1, 0, 1024, 1 << 20, nb=(4, 0, 0, 0))
    return s.node(MUL_MAT, (1 << 20, 1), rows, s.tensor(2, 1 << 20, 1024, 1))


def _experts(s: Stage) -> bytes:
    """A row of a table for each expert and each id: 2 GiB of it for what is 1 MiB here."""
    experts, values = s.tensor(1, 0, 4, 1, 1 << 16), s.tensor(2, 1 << 20, 4, 1, 1)
    ids = s.tensor(3, 2 << 20, 1 << 13, 1, kind=I32)
    return s.node(MUL_MAT_ID, (1, 1 << 13, 1), experts, values, ids)


def _view(s: Stage, *, of: int = 1, at: int = 64, offset: int = 64) -> bytes:
    whole = s.tensor(1, 0, 64)
    part = s.tensor(2, at, 4, op=VIEW, view=of, view_offset=offset, sources=(1,))
    inner = s.tensor(3, 128, 4, op=VIEW, view=2, view_offset=64, sources=(2,))
    return talk.graph([whole, part, inner], (2, 3) if (of, at, offset) == (1, 64, 64) else (2,))


def _claimed(command: int, size: int, body: bytes = b"") -> bytes:
    """The beginning of a message that says it is this long."""
    return rpc.REQUEST.pack(command, size) + body


_ADDRESSES = {
    f"operation {op} calls an address": Case(f"operation {op} refused", lambda s, op=op: _sum(s, op=op))  # type: ignore[misc]
    for op in (MAP_CUSTOM1, MAP_CUSTOM2, MAP_CUSTOM3, CUSTOM)
}

_OPERATIONS = {
    "the operation behind the last": Case("unknown operation 101", lambda s: _sum(s, op=COUNT)),
    "an operation of 2^32 - 1": Case("unknown operation", lambda s: _sum(s, op=(1 << 32) - 1)),
    "a unary function behind the last": Case(
        "UNARY", lambda s: s.node(rpc.UNARY, (4,), _four(s), param=rpc.KINDS_OF[rpc.UNARY])
    ),
    "a gated function below the first": Case(
        "GLU", lambda s: s.node(rpc.GLU, (4,), s.tensor(1, 0, 8), param=(1 << 32) - 1)
    ),
}

_TENSORS = {
    "a result behind the buffer": Case("out of buffer bounds", lambda s: _sum(s, data=s.base + ROOM)),
    "a result before the buffer": Case("has no data", lambda s: _sum(s, data=s.base - 16)),
    "a result at the end of all memory": Case("has no data", lambda s: _sum(s, data=(1 << 64) - 16)),
    "a source behind the buffer": Case(
        "out of buffer bounds", lambda s: _other_operand(s, data=s.base + ROOM - 8)
    ),
    "an address in no buffer": Case("has no data", lambda s: _sum(s, buffer=s.handle + 8)),
    "a buffer that is none": Case("has no data", lambda s: _sum(s, buffer=0xDEADBEEF, data=0xDEADBEEF)),
    "an address between two floats": Case("unaligned", lambda s: _sum(s, data=s.base + 1)),
    "an unknown type": Case("type 1000", lambda s: _sum(s, kind=1000)),
    "a type that no tensor has": Case("type 15", lambda s: _sum(s, kind=Q8_K)),
    "half a block": Case("row of 33 elements", lambda s: _sum(s, kind=Q4_0, ne=(33, 1, 1, 1))),
    "2^126 elements": Case("ne[0]", lambda s: _sum(s, ne=((1 << 32) - 1,) * 4)),
    "no elements, and a product that overflows": Case(
        "ne[0]", lambda s: _sum(s, ne=((1 << 32) - 1,) * 3 + (0,))
    ),
    "no elements, each size possible": Case(
        "too large", lambda s: _sum(s, ne=((1 << 31) - (1 << 17),) * 3 + (0,))
    ),
    "a product that overflows": Case("too large", lambda s: _sum(s, ne=(1 << 16,) * 4, nb=(4, 0, 0, 0))),
}

_STRIDES = {
    "elements that overlap": Case("nb[0] = 2", lambda s: _other_operand(s, nb=(2, 16, 16, 16))),
    "a row outside, by its stride": Case(
        "out of buffer bounds", lambda s: _other_operand(s, ne=(4, 2, 1, 1), nb=(4, (1 << 32) - 4, 0, 0))
    ),
    "gaps in a row of a product": Case(
        "is_row",
        lambda s: s.node(
            MUL_MAT, (2, 1), s.tensor(1, 0, 4, 2, nb=(8, 32, 64, 64)), s.tensor(2, 1 << 20, 4, 1)
        ),
    ),
    "gaps between rows that are scaled": Case(
        "SCALE refused", lambda s: s.node(SCALE, (4, 2), s.tensor(1, 0, 4, 2, nb=(4, 64, 128, 128)))
    ),
    "a result with gaps": Case("is_result", lambda s: _sum(s, nb=(8, 32, 32, 32))),
    "a result over half a source": Case("src->data == t->data", lambda s: _sum(s, data=s.base + 8)),
    "a result over what is still read": Case("in_place", lambda s: _joined(s, data=s.base)),
    "rows without room between": Case("without gaps", _wide),
}

_GRAPHS = {
    "node 0": Case("(id=0)", lambda s: talk.graph([_four(s)], (0,))),
    "a node that is not there": Case("no tensor for node", lambda s: talk.graph([_four(s)], (7,))),
    "a tensor with id 0": Case("is no id", lambda s: talk.graph([s.tensor(0, 0, 4)], ())),
    "two tensors of one id": Case("there twice", lambda s: talk.graph([_four(s)] * 2, (1,))),
    "a node twice": Case(
        "there twice", lambda s: talk.graph([s.tensor(1, 0, 4), s.tensor(2, 16, 4)], (1, 1))
    ),
    "no sources": Case("it has no source 0", lambda s: _sum(s, sources=())),
    "one source of two": Case("it has no source 1", lambda s: _sum(s, sources=(1,))),
    "a source too many": Case("it has a source 2", lambda s: _sum(s, sources=(1, 2, 1))),
    "a source that is not there": Case("no tensor for source 1", lambda s: _sum(s, sources=(1, 9))),
    "a view of itself": Case("is no view", lambda s: _view(s, of=2)),
    "a view of what is not there": Case("no tensor for view_src", lambda s: _view(s, of=9)),
    "a view of a view": Case("is no view", _view),
    "a view elsewhere than it says": Case("is no view", lambda s: _view(s, offset=1 << 40)),
    "a view outside": Case("out of buffer bounds", lambda s: _view(s, at=ROOM, offset=ROOM)),
    "more nodes than were sent": Case("nodes", lambda s: talk.graph([_four(s)], (1,), count=(1 << 32) - 1)),
    "more tensors than were sent": Case("tensors in", lambda s: talk.graph([_four(s)], (1,), total=200)),
    "a device that is not there": Case("no device 7", lambda s: talk.graph([_four(s)], (1,), device=7)),
    "an empty message": Case("too short", lambda _s: talk.request(rpc.GRAPH_COMPUTE)),
    "a chain of 400,000": Case("Message of 118400020 bytes", lambda s: _chain(s, LONGER_CHAIN)),
}

_SHAPES = {
    "a product of rows of other lengths": Case(
        "MUL_MAT refused", lambda s: s.node(MUL_MAT, (2, 1), s.tensor(1, 0, 4, 2), s.tensor(2, 64, 8, 1))
    ),
    "a product with a larger result": Case(
        "MUL_MAT refused", lambda s: s.node(MUL_MAT, (200, 1), s.tensor(1, 0, 4, 2), s.tensor(2, 64, 4, 1))
    ),
    "a product of stacks that do not fit": Case(
        "MUL_MAT refused",
        lambda s: s.node(MUL_MAT, (2, 1, 3), s.tensor(1, 0, 4, 2, 2), s.tensor(2, 64, 4, 1, 3)),
    ),
    "experts that need a table of 2 GiB": Case("MUL_MAT_ID refused", _experts),
    "more dimensions turned than a row has": Case(
        "ROPE refused",
        lambda s: s.node(
            ROPE, (4, 1, 1), s.tensor(1, 0, 4, 1, 1), s.tensor(2, 64, 1, kind=I32), params=(64,)
        ),
    ),
    "a mask shorter than its rows": Case(
        "SOFT_MAX refused",
        lambda s: s.node(SOFT_MAX, (64, 4), s.tensor(1, 0, 64, 4), s.tensor(2, 1 << 20, 4, 1)),
    ),
    "attention to fewer values than keys": Case(
        "FLASH_ATTN_EXT refused",
        lambda s: s.node(
            FLASH_ATTN,
            (64, 1, 1),
            s.tensor(1, 0, 64, 1),
            s.tensor(2, 1024, 64, 32),
            s.tensor(3, 1 << 20, 64, 1),
        ),
    ),
    "joined along a seventh dimension": Case(
        "CONCAT refused",
        lambda s: _joined(s, param=7),
    ),
    "put behind the end": Case(
        "SET refused",
        lambda s: s.node(SET, (4,), _four(s), s.tensor(2, 16, 4), param=16, params=(16, 16, 1 << 30)),
    ),
    "an image with a step of 0": Case(
        "IM2COL refused",
        lambda s: s.node(
            IM2COL, (1, 4), s.tensor(1, 0, 1), s.tensor(2, 64, 4), param=0, params=(0, 0, 0, 1, 1)
        ),
    ),
    "a pool of no size": Case(
        "POOL_2D refused", lambda s: s.node(POOL_2D, (4, 4), s.tensor(1, 0, 4, 4), params=(0, 0, 0, 0, 0, 0))
    ),
    "a margin below 0": Case(
        "PAD refused", lambda s: s.node(PAD, (4,), s.tensor(1, 0, 8), param=(1 << 32) - 4)
    ),
    "an order that is none": Case(
        "ARGSORT refused", lambda s: s.node(ARGSORT, (4,), _four(s), kind=I32, param=9)
    ),
}

_MESSAGES = {
    "a graph of 1 TiB": Case("Message of", lambda _s: _claimed(rpc.GRAPH_COMPUTE, TIB)),
    "names of 1 TiB": Case("Message of", lambda _s: _claimed(rpc.SET_TENSOR_GGUF, TIB)),
    "data of 1 TiB": Case(
        "out of tensor bounds",
        lambda s: _claimed(rpc.SET_TENSOR, TIB, s.tensor(1, 0, 4).encode() + struct.pack("<BQ", 0, 0)),
    ),
    "data shorter than its header": Case("too short", lambda _s: _claimed(rpc.SET_TENSOR, 16, bytes(16))),
    "HELLO of 1 TiB": Case("", lambda _s: _claimed(rpc.HELLO, TIB)),
    "a request of 1 TiB": Case("", lambda _s: _claimed(rpc.ALLOC_BUFFER, TIB, bytes(12))),
    "an answer of 1 TiB": Case("out of tensor bounds", lambda s: talk.get_tensor(_four(s), size=TIB)),
    "read behind the tensor": Case("out of tensor bounds", lambda s: talk.get_tensor(_four(s), offset=8)),
    "read before it": Case(
        "out of tensor bounds", lambda s: talk.get_tensor(s.tensor(1, 64, 4), offset=(1 << 64) - 16)
    ),
    "written behind the tensor": Case("out of tensor bounds", lambda s: talk.set_tensor(_four(s), bytes(17))),
    "filled behind the tensor": Case("out of tensor bounds", lambda s: talk.memset(_four(s), size=TIB)),
    "copied over its own end": Case("overlap", lambda s: talk.copy(_four(s), s.tensor(2, 8, 4))),
    "copied to another layout": Case("layouts", lambda s: talk.copy(s.tensor(1, 0, 64), s.tensor(2, 512, 4))),
    "recomputed without a graph": Case("", lambda _s: talk.recompute()),
    "recomputed when its buffer is gone": Case(
        "", lambda s: _sum(s) + talk.on_buffer(rpc.FREE_BUFFER, s.handle) + talk.recompute()
    ),
    "freed twice": Case("buffer not found", lambda s: talk.on_buffer(rpc.FREE_BUFFER, s.handle) * 2),
    "a command that is none": Case("Unknown command: 99", lambda _s: talk.request(99)),
}

CASES: Mapping[str, Case] = {
    **_ADDRESSES,
    **_OPERATIONS,
    **_TENSORS,
    **_STRIDES,
    **_GRAPHS,
    **_SHAPES,
    **INDICES,
    **_MESSAGES,
}

SERVED: Mapping[str, Make] = {
    "a chain of 200,000": lambda s: _chain(s, CHAIN),
    "a circle": _circle,
    "a graph of nothing": lambda _s: talk.graph([], ()),
}


def every_operation(s: Stage, op: int, sources: int) -> bytes:
    """One node of this operation that has so many sources, whatever it needs."""
    given = [s.tensor(number, 64 * number, 4) for number in range(1, sources + 1)]
    return s.node(op, (4,), *given)
