"""Targets of what daemons read of the mesh-server protocol: broken talks, answers, and pushes.

What passes is read again, without the daemon's own code: whole messages of their sender, as long as those may
be. What they ask for is fuzzed at mesh-server itself (native.py).
"""

import random
import struct
from collections.abc import Iterator, Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_head_view import AbsentWeights, MeshHeadView
from meshd.rpc.mesh_keeping import MeshKeeping, Missed
from meshd.rpc.mesh_lease_view import MeshPushFilter

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target
from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import BUFFER, Q4_0, ROOM, MeshTalk

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
    talk.message(wire.SYNC, identity=91),
    talk.message(wire.MEET, identity=93),
    talk.load(talk.load_entry(), talk.load_entry(kind=Q4_0, size=18)),
    talk.push(),
    talk.push(wire.TAKE, neighbour=0),
    talk.push(row=4),
    talk.push(wire.TAKE, row=2),
    talk.add_up(),
    talk.load_parts(talk.load_part(), talk.load_part(count=1)),
    talk.allocate(2),
    talk.message(wire.FREE, BUFFER),
    talk.hello(),
    talk.message(wire.FILL, BUFFER, 7, 16, 64, identity=0),
)
_LENGTHS = {  # least and most bytes of bodies, by sender and number
    "head": {1: (4, 260), 2: (16, 16), 3: (4, 4), 4: (24, 24), 5: (16, (4 << 20) + 16), 6: (24, 24)}
    | {7: (32, 32), 8: (24, 8519704), 9: (16, 16), 10: (0, 0), 11: (0, 57344), 12: (32, 32), 13: (32, 32)}
    | {14: (0, 0), 15: (48, 48), 16: (0, 98304)},
    "worker": {129: (16, 4172), 130: (4, 4), 134: (0, 4 << 20), 138: (0, 0), 139: (0, 1024)}
    | {140: (32, 32), 142: (0, 64), 255: (0, 256)},
    "neighbour": {192: (8, 8 + (4 << 20)), 193: (8, 8 + (256 << 10))},
}


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


def _check(sender: str, passed: bytes) -> None:
    """All messages of what passed, the last of which may have a part of its body."""
    at = 0
    while at < len(passed):
        size, number, zero, _identity = struct.unpack_from("<IHHQ", passed, at)
        assert not zero
        least, most = _LENGTHS[sender][number]
        assert least <= size <= most
        at += 16 + size


def _feed(data: bytes) -> None:
    it, passed = MeshTalk(keeping=MeshKeeping(_Sink())), bytearray()
    it.say(talk.load(talk.load_entry(), talk.load_entry(offset=ROOM - 16), identity=70))
    it.hear(talk.message(wire.LOADED, rest=b"\1\3", identity=70))
    try:
        for part in _in_parts(data):
            passed += it.say(part)
            assert it.view.held_bytes <= len(data)
    finally:
        assert data.startswith(bytes(passed))
        _check("head", bytes(passed))
        assert it.view.memory_held() in ({0: ROOM}, {})  # of what no server has made nothing counts


def _feed_answers(data: bytes) -> None:
    it, passed = MeshTalk(keeping=MeshKeeping(_Sink())), bytearray()
    it.say(talk.read(identity=_READ_ID) + talk.load(talk.load_entry(), talk.load_entry(), identity=4))
    it.say(talk.allocate(2, identity=8) + talk.message(wire.SYNC, identity=9))
    it.say(talk.load_parts(talk.load_part(), talk.load_part(count=1), identity=5))
    try:
        for at in range(0, len(data), 11):
            passed += it.hear(data[at : at + 11])
    finally:
        assert data.startswith(bytes(passed))
        _check("worker", bytes(passed))
        assert sum(it.view.memory_held().values()) <= 2 * ROOM


def _feed_pushed(data: bytes) -> None:
    for way in ("from_peer", "to_peer"):
        it, passed = MeshPushFilter(), bytearray()
        try:
            for part in _in_parts(data):
                passed += getattr(it, way)(part)
                assert it.held_bytes < 16
        finally:
            _check("neighbour", bytes(passed))


def _feed_view(data: bytes) -> None:
    """Both directions of what a head's daemon reads along: what passes is what came."""
    for lacks in (False, True):
        _feed_one_way(data, "to_peer", "head", lacks=lacks)
        _feed_one_way(data, "from_peer", "worker", lacks=lacks)


def _feed_one_way(data: bytes, way: str, sender: str, *, lacks: bool) -> None:
    """`lacks`: the head's file lacks tensors."""
    placed: list[int] = []
    absent = AbsentWeights({bytes(32)}, lambda _digest: None) if lacks else None
    view = MeshHeadView(lambda _digest, size, _why: placed.append(size), absent=absent)
    passed = bytearray()
    view.to_peer(talk.load(talk.load_entry(), talk.load_entry(), identity=4))
    view.to_peer(talk.load_parts(talk.load_part(), talk.load_part(count=1), identity=5))
    try:
        for part in _in_parts(data):
            passed += getattr(view, way)(part)
    finally:
        assert data.startswith(bytes(passed))
        _check(sender, bytes(passed))
        assert len(placed) <= 4
        assert len(view.neighbours) <= wire.NEIGHBOURS


_ANSWERS = (
    talk.data(identity=_READ_ID),
    talk.message(wire.LOADED, rest=b"\0\1", identity=4),
    talk.message(wire.LOADED, rest=b"\1\0", identity=5),
    talk.allocated(0, identity=8),
    talk.message(wire.SYNCED, identity=9),
    talk.failed(),
    talk.progress(),
    talk.welcome(),
    talk.met(0, 15),
)
_LONGEST = talk.summand(wire.SUMMAND_BYTES)[
    :2000
]  # the rest is what follows: a whole one would hold the limit
_PUSHES = (talk.pushed(), talk.pushed(0), talk.summand(), talk.summand(0), _LONGEST)
TARGETS = tuple(
    Target(
        name=name, samples=samples, make=_make_talk, feed=feed, allowed=(RemoteProtocolError,), share=share
    )
    for name, samples, feed, share in (
        ("mesh-talk", SAMPLES, _feed, 8),
        ("mesh-answers", _ANSWERS, _feed_answers, 2),
        ("mesh-view", (*SAMPLES, *_ANSWERS), _feed_view, 2),
        ("mesh-pushed", _PUSHES, _feed_pushed, 2),
    )
)
