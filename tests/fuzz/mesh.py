"""Targets of the mesh-server firewall: broken talks, graphs of fields that may hurt, answers, and pushes.

What passes is read again, without the firewall's own code: it names the one buffer there is and stays in it,
asks for operations that are known, and has its sources before it.
"""

import random
import struct
from collections.abc import Iterator, Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.rpc.mesh_keeping import MeshKeeping, Missed
from meshd.rpc.mesh_push_firewall import MeshPushFilter

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target
from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import BUFFER, NUMBERS, Q4_0, ROOM, MeshTalk, Tensor

_READ_ID = 3
SAMPLES = (
    talk.write(),
    talk.write(offset=ROOM - 16),
    talk.read(),
    talk.read(identity=90, offset=ROOM - 16),
    talk.write(row=3, data=bytes(16), offset=ROOM - 24),
    talk.read(identity=92, row=4, size=32),
    talk.message(wire.FILL, BUFFER, 7, 16, 64),
    talk.message(wire.COPY, BUFFER, BUFFER, 0, 64, 64),
    talk.graph(uid=3),
    talk.compute(3),
    talk.node("RMS_NORM", 1),
    talk.node("GLU", 1, 2, parameter=2),
    talk.message(wire.SYNC, identity=91),
    talk.load(talk.load_entry(), talk.load_entry(kind=Q4_0, size=18)),
    talk.push(),
    talk.push(wire.TAKE, neighbour=0),
    talk.push(row=4),
    talk.push(wire.TAKE, row=2),
    talk.allocate(),
    talk.message(wire.FREE, BUFFER),
    talk.hello(),
    talk.message(wire.FILL, BUFFER, 7, 16, 64, identity=0),
)
_SIZES = (0, 1, 2, 4, 31, 32, 64, 256, 1024, 1 << 20, 1 << 31, (1 << 32) - 1)
_STRIDES = (*_SIZES, 1 << 44, 1 << 63, (1 << 64) - 4)
_PLACES = (0, 1, 16, ROOM - 16, ROOM - 15, ROOM, 1 << 63, (1 << 64) - 8)


def _tensor(rng: random.Random, number: int) -> Tensor:
    """Number `number` of a graph, mostly good."""

    def mostly(good: int, others: Sequence[int]) -> int:
        return good if rng.random() < 0.97 else rng.choice(others)

    ids = range(number + 2)
    least = rng.randrange(max(1, number))
    return Tensor(
        buffer=mostly(BUFFER, (0, 2, (1 << 32) - 1)),
        kind=mostly(0, range(len(wire.TYPES) + 2)),
        offset=mostly(16 * rng.randrange(8), _PLACES),
        ne=(mostly(4, _SIZES), mostly(1, _SIZES), mostly(1, _SIZES), mostly(1, _SIZES)),
        nb=(mostly(4, _STRIDES), mostly(16, _STRIDES), mostly(16, _STRIDES), mostly(16, _STRIDES)),
        operation=mostly(NUMBERS["ADD"] if number > 2 else 0, range(len(wire.OPERATIONS) + 2)),
        parameter=mostly(0, (6, 7, 21, 22, -1)),
        sources=tuple(mostly(least, ids) for _ in range(mostly(2, range(11)))),
        viewed=mostly(0, ids),
        view_offset=mostly(0, _STRIDES),
    )


def _make_graph(rng: random.Random, _samples: Sequence[bytes]) -> bytes:
    tensors = [_tensor(rng, number) for number in range(1, rng.randint(2, 8))]
    nodes = [at for at, one in enumerate(tensors) if one.operation and rng.random() < 0.95] or [0]
    if rng.random() < 0.1:
        nodes.append(rng.choice((nodes[0], len(tensors), (1 << 32) - 1)))
    return talk.graph(tensors, nodes, uid=rng.randrange(3)) + talk.compute(1)


def _make_talk(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    row = [rng.choice(samples) for _ in range(rng.randint(1, 6))]
    at = rng.randrange(len(row))
    row[at] = flip(rng, row[at], samples)
    return b"".join(row)


def _in_parts(data: bytes) -> Iterator[bytes]:
    cut = len(data) // 3
    yield from (data[:cut], data[cut : cut + 1], data[cut + 1 :])


class _Sink:
    """Keeps nothing, and is told of no byte that a tensor does not have."""

    def loaded(self, digest: bytes) -> None:
        assert len(digest) == 32

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        assert 0 < len(data) <= tensor.size - offset
        assert last == (offset + len(data) == tensor.size)
        return len(data) % 5 != 0


def _feed(data: bytes) -> None:
    it, passed = MeshTalk(memory=2 * ROOM, keeping=MeshKeeping(_Sink())), bytearray()
    it.say(talk.load(talk.load_entry(), talk.load_entry(offset=ROOM - 16), identity=70))
    it.hear(talk.message(wire.LOADED, rest=b"\1\3", identity=70))
    try:
        for part in _in_parts(data):
            passed += it.say(part)
            assert it.firewall.held_bytes <= len(data)
    finally:
        _check(bytes(passed))


def _check(passed: bytes) -> None:
    """All messages of what passed, the last of which may be the beginning of a WRITE."""
    at, rooms = 0, {BUFFER: ROOM}
    while at < len(passed):
        size, number, zero, identity = struct.unpack_from("<IHHQ", passed, at)
        body = passed[at + 16 : at + 16 + size]
        assert not zero
        assert identity
        assert 2 <= number <= 13
        if number == wire.ALLOCATE:
            buffer, device, room = struct.unpack("<IIQ", body)
            assert buffer
            assert device < talk.DEVICES
            assert buffer not in rooms
            rooms[buffer] = room
            assert sum(rooms.values()) <= 2 * ROOM
        elif number == wire.FREE:
            del rooms[struct.unpack("<I", body)[0]]
        elif number == wire.GRAPH:
            _check_graph(body, rooms)
        elif number == wire.LOAD:
            for entry in range(0, size, 56):
                buffer, kind, offset, count = struct.unpack_from("<IIQQ", body, entry)
                assert kind < len(wire.TYPES)
                assert offset + count <= rooms[buffer]
        else:
            for buffer, begin, end in _places(number, body, size):
                assert begin <= end <= rooms[buffer]
        at += 16 + size


def _places(number: int, body: bytes, size: int) -> Iterator[tuple[int, int, int]]:
    """Buffers, and from where to where."""
    if number == wire.FILL:
        buffer, _value, offset, count = struct.unpack("<IIQQ", body)
        yield buffer, offset, offset + count
    elif number == wire.WRITE:
        buffer, row, offset = struct.unpack_from("<IIQ", body)
        count = size - 16
        if row:
            assert 4 * row <= 4 << 20
            assert count % (2 * (row + 1)) == 0
            count = count // (2 * (row + 1)) * 4 * row
            assert count <= 4 << 20
        yield buffer, offset, offset + count
    elif number == wire.READ:
        buffer, count, offset, row, zero = struct.unpack("<IIQII", body)
        assert not zero
        assert 4 * row <= 4 << 20
        assert not row or count % (4 * row) == 0
        yield buffer, offset, offset + count
    elif number == wire.COPY:
        source, target, start, to, count = struct.unpack("<IIQQQ", body)
        yield from ((source, start, start + count), (target, to, to + count))
    elif number in (wire.PUSH, wire.TAKE):
        neighbour, buffer, count, row, offset, _token = struct.unpack("<IIIIQQ", body)
        assert neighbour in talk.NEIGHBOURS
        assert 4 * row <= 4 << 20
        assert not row or count % (4 * row) == 0
        assert count <= 4 << 20
        yield buffer, offset, offset + count


def _check_graph(body: bytes, rooms: dict[int, int]) -> None:
    _uid, device, nodes, tensors, _zero = struct.unpack_from("<QIIII", body)
    assert device < talk.DEVICES
    assert len(body) == 24 + 4 * nodes + 256 * tensors
    listed = struct.unpack_from(f"<{nodes}I", body, 24)
    assert nodes
    assert len(set(listed)) == nodes
    assert max(listed) < tensors
    for number in range(1, tensors + 1):
        row = body[24 + 4 * nodes + 256 * (number - 1) :][:256]
        buffer, kind, offset, *shape = struct.unpack_from("<IIQ4I4Q", row)
        (operation,) = struct.unpack_from("<I", row, 64)
        sources = struct.unpack_from("<11I", row, 136)
        assert operation < 63
        assert max(sources) <= number != sources[-1]
        layout = TENSOR_TYPE_NAMES[wire.TYPES[kind].lower()]
        if buffer and 0 not in shape[:4]:
            last = sum((ne - 1) * nb for ne, nb in zip(shape[1:4], shape[5:], strict=True))
            last += (shape[0] // layout.block_elements - 1) * shape[4] + layout.block_bytes
            assert offset + last <= rooms[buffer]


def _feed_answers(data: bytes) -> None:
    it = MeshTalk()
    it.say(talk.read(identity=_READ_ID) + talk.load(talk.load_entry(), talk.load_entry(), identity=4))
    it.say(talk.allocate(2, identity=8) + talk.message(wire.SYNC, identity=9))
    for at in range(0, len(data), 11):
        it.hear(data[at : at + 11])


def _feed_welcome(data: bytes) -> None:
    it = MeshTalk(greeted=False)
    it.say(talk.hello())
    for part in _in_parts(data):
        it.hear(part)
    for message in (talk.allocate(), *SAMPLES[:-4]):
        it.say(message)


def _feed_pushed(data: bytes) -> None:
    for way in ("from_peer", "to_peer"):
        it, passed = MeshPushFilter(), bytearray()
        try:
            for part in _in_parts(data):
                passed += getattr(it, way)(part)
                assert it.held_bytes < 16
        finally:
            at = 0
            while at < len(passed):
                size, number, zero, _id = struct.unpack_from("<IHHQ", passed, at)
                assert (number, zero) == (192, 0)
                assert 8 <= size <= 8 + (4 << 20)
                at += 16 + size


def _feed_view(data: bytes) -> None:
    """Both directions of what a head's daemon reads along: what passes is what came."""
    placed: list[int] = []
    for way in ("to_peer", "from_peer"):
        view, passed = MeshHeadView(lambda _digest, size, _why: placed.append(size)), bytearray()
        view.to_peer(talk.load(talk.load_entry(), talk.load_entry(), identity=4))
        try:
            for part in _in_parts(data):
                passed += getattr(view, way)(part)
        finally:
            assert data.startswith(bytes(passed))
            assert len(placed) <= 2
            assert len(view.neighbours) <= wire.NEIGHBOURS


TARGETS = tuple(
    Target(name=name, samples=samples, make=make, feed=feed, allowed=(RemoteProtocolError,), share=share)
    for name, samples, make, feed, share in (
        ("mesh-talk", SAMPLES, _make_talk, _feed, 8),
        ("mesh-graph", (talk.graph(),), _make_graph, _feed, 8),
        (
            "mesh-answers",
            (
                talk.data(identity=_READ_ID),
                talk.message(wire.LOADED, rest=b"\0\1", identity=4),
                talk.allocated(0, identity=8),
                talk.message(wire.SYNCED, identity=9),
                talk.failed(),
                talk.progress(),
            ),
            _make_talk,
            _feed_answers,
            2,
        ),
        ("mesh-welcome", (talk.welcome(),), _make_talk, _feed_welcome, 1),
        (
            "mesh-view",
            (
                *SAMPLES,
                talk.welcome(),
                talk.data(identity=_READ_ID),
                talk.message(wire.LOADED, rest=b"\0\1", identity=4),
                talk.progress(),
            ),
            _make_talk,
            _feed_view,
            2,
        ),
        ("mesh-pushed", (talk.pushed(), talk.pushed(0)), _make_talk, _feed_pushed, 2),
    )
)
