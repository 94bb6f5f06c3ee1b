"""Targets of the RPC firewall: broken talks, and graphs whose fields are drawn from what may hurt.

What passes is read again, without the firewall's own code: it names the one buffer there is and stays in it,
asks for operations that are known, and has its sources before it.
"""

import random
import struct
from collections.abc import Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.model.ggml import TENSOR_TYPES
from meshd.rpc import protocol as rpc
from meshd.rpc.answers import KnownAnswers
from meshd.rpc.missed_tensors import Missed, TensorKeeping
from meshd.rpc.push_firewall import PushFilter
from meshd.rpc.stock_head_skip import ANNOUNCED, LoadStates, Saving
from meshd.rpc.stock_worker_fill import Filling

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target
from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, HANDLE, ROOM, Talk, Tensor

END = BASE + ROOM
SAMPLES = (
    talk.set_tensor(Tensor()),
    talk.set_tensor(Tensor(data=END - 16), bytes(4), offset=12),
    talk.get_tensor(Tensor()),
    talk.memset(Tensor()),
    talk.set_hash(Tensor()),
    talk.copy(Tensor(), Tensor(data=BASE + 64)),
    talk.init(Tensor()),
    talk.alloc_size(Tensor(), [Tensor()]),
    talk.load(talk.load_entry(), talk.load_entry(kind=talk.Q4_0, ne=(32, 4, 1, 1), size=72)),
    talk.ask_ops(talk.asked_op(talk.ADD, 0b11), talk.asked_op(talk.MUL_MAT, 0b11), tensors=6),
    talk.GRAPH,
    talk.recompute(),
    talk.alloc(),
    talk.on_buffer(rpc.BUFFER_GET_BASE),
    talk.on_buffer(rpc.FREE_BUFFER),
    talk.request(rpc.DEVICE_COUNT),
    talk.session(),
    talk.check(),
    talk.push(Tensor()),
    talk.take(Tensor(data=END - 16), offset=8, size=8),
    talk.set_half(Tensor(data=END - 16)),
    talk.get_half(Tensor()),
    talk.push_half(Tensor()),
    talk.take_half(Tensor()),
)
WANTED = tuple(
    talk.load_entry(data=at, digest=bytes([number]) * 32) for number, at in enumerate((BASE, END - 16))
)
ALLOC_SIZE = talk.alloc_size(Tensor(kind=talk.Q4_0, ne=(64, 2, 1, 1), nb=(18, 36, 72, 72)))
_SIZES = (0, 1, 2, 4, 31, 32, 64, 256, 1024, 1 << 20, 1 << 31, (1 << 32) - 1)
_PLACES = (0, 1, BASE - 1, BASE, BASE + 16, END - 16, END - 15, END, 1 << 63, (1 << 64) - 8)
_OPERATIONS = (0, 2, 29, 34, 36, 37, 46, 74, 91, 92, 95, 98, 100, 101, 0xFFFFFFFF)


def _tensor(rng: random.Random, number: int) -> Tensor:
    """Good in most of its fields."""

    def mostly(good: int, others: Sequence[int]) -> int:
        return good if rng.random() < 0.9 else rng.choice(others)

    ids = range(number + 2)
    return Tensor(
        id=mostly(number, ids),
        kind=mostly(0, range(45)),
        buffer=mostly(HANDLE, (0, 1, HANDLE + 1)),
        ne=(mostly(4, _SIZES), mostly(1, _SIZES), mostly(1, _SIZES), mostly(1, _SIZES)),
        nb=(mostly(4, _SIZES), mostly(16, _SIZES), mostly(16, _SIZES), mostly(16, _SIZES)),
        op=mostly(2 if number > 2 else 0, _OPERATIONS),
        param=mostly(0, (6, 7, 21, 22, 0xFFFFFFFF)),
        sources=tuple(mostly(rng.randrange(max(1, number)), ids) for _ in range(mostly(2, range(11)))),
        view=mostly(0, ids),
        data=mostly(BASE + 16 * rng.randrange(8), _PLACES),
    )


def _make_graph(rng: random.Random, _samples: Sequence[bytes]) -> bytes:
    tensors = [_tensor(rng, number) for number in range(1, rng.randint(2, 8))]
    nodes = [tensor.id for tensor in tensors if tensor.op and rng.random() < 0.95]
    if rng.random() < 0.1:
        rng.shuffle(tensors)
    return talk.graph(tensors, nodes or [1]) + talk.recompute()


def _make_talk(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    row = [rng.choice(samples) for _ in range(rng.randint(1, 6))]
    at = rng.randrange(len(row))
    row[at] = flip(rng, row[at], samples)
    return b"".join(row)


def _make_pushed(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """As a server says it, with one place broken in most."""
    hello, *data = samples
    said = hello + b"".join(rng.choice(data) for _ in range(rng.randint(0, 5)))
    return said if rng.random() < 0.2 else flip(rng, said, samples)


class _Kept:
    """Takes every piece that lies inside its tensor, and each byte once."""

    def __init__(self) -> None:
        self._left: dict[Missed, int] = {}

    def loaded(self, _digest: bytes) -> None:
        raise AssertionError("nobody has said so")

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        assert data and 0 <= offset <= tensor.size - len(data)
        left = self._left.get(tensor, tensor.size) - len(data)
        assert left >= 0 and last == (not left)
        self._left[tensor] = left
        return True


def _feed(data: bytes) -> None:
    it, passed, filling = Talk(TensorKeeping(_Kept())), bytearray(), Filling()
    it.say(talk.check())
    it.hear(talk.answer(b"\1"))  # a neighbour to which it may push
    it.say(talk.load(*WANTED))
    it.hear(talk.answer(bytes([rpc.NO_SUCH_HASH]) * len(WANTED)))  # what comes of these is kept
    cut = len(data) // 3
    try:
        for part in (data[:cut], data[cut : cut + 1], data[cut + 1 :]):
            allowed = it.say(part)
            passed += allowed
            filling.requests(allowed)  # what stands behind it reads without checks
            assert it.firewall.held_bytes <= len(data)
    finally:
        _check(bytes(passed))


def _feed_pushed(data: bytes) -> None:
    it, passed, at = PushFilter(), bytearray(), 0
    try:
        for step in (5, 20, 3, 1000, len(data)):
            passed += it.from_peer(data[at : at + step])
            at += step
            assert it.held_bytes <= 25
    finally:
        _check_pushed(bytes(passed))
    it.to_peer(data[:30])


def _check_pushed(passed: bytes) -> None:
    """One session, then nothing but tensors; the last may be the beginning of one."""
    at = 0
    while at < len(passed):
        command, size = struct.unpack_from("<BQ", passed, at)
        assert (command, size) == (70, 16) if not at else command == 71
        assert size <= (64 << 20)
        at += 9 + size


def _feed_answers(data: bytes) -> None:
    it = Talk()
    it.say(talk.alloc() + talk.on_buffer(rpc.BUFFER_GET_BASE) + talk.get_tensor(Tensor()))
    for at in range(0, len(data), 11):
        it.hear(data[at : at + 11])


def _feed_saving(data: bytes) -> None:
    """Answers of a worker to a stock head, which has greeted it and asked what it can be asked."""
    answers = KnownAnswers()
    saving = Saving({}, answers)
    questions = [talk.request(rpc.DEVICE_COUNT), talk.request(rpc.GET_ALIGNMENT, bytes(4)), ALLOC_SIZE]
    for request in (talk.hello(bytes(24)), *questions, talk.get_tensor(Tensor())):
        list(saving.requests(request))
    saving.load([bytes(rpc.LOAD_ENTRY_BYTES)] * 2)
    for at in range(0, len(data), 11):
        for part in saving.answers(data[at : at + 11]):
            assert not isinstance(part, LoadStates) or len(part.states) == 2
    for request in (talk.hello(bytes(24)), *questions):  # with what was learnt
        list(Saving({}, answers).requests(request))


def _check(passed: bytes) -> None:
    """All messages of what passed, the last of which may be the beginning of a SET_TENSOR."""
    at = 0
    while at < len(passed):
        command, size = struct.unpack_from("<BQ", passed, at)
        body = passed[at + 9 : at + 9 + size]
        if command == rpc.SET_TENSOR:
            place, offset = _read(body), struct.unpack_from("<Q", body, 297)[0]
            assert BASE <= place[0] <= place[0] + offset + size - 305 <= END
        elif command in (rpc.SET_TENSOR_F16, rpc.GET_TENSOR_F16, rpc.PUSH_TENSOR_F16, rpc.TAKE_TENSOR_F16):
            begin, end = _read(body)
            assert BASE <= begin < end <= END
            assert (end - begin) % 4 == 0
        elif command in (rpc.PUSH_TENSOR, rpc.TAKE_TENSOR, rpc.GET_TENSOR):
            offset, count = struct.unpack_from("<QQ", body, 296)
            assert BASE <= _read(body)[0] <= _read(body)[0] + offset + count <= END
        elif command == rpc.GRAPH_COMPUTE:
            _check_graph(body)
        at += 9 + size


def _read(tensor: bytes) -> tuple[int, int]:
    """Where the tensor begins and ends; it has the buffer."""
    kind, buffer, *shape = struct.unpack_from("<IQ8I", tensor, 8)
    (data,) = struct.unpack_from("<Q", tensor, 220)
    assert kind in TENSOR_TYPES
    if not buffer:
        assert not data
        return 0, 0
    assert buffer == HANDLE
    layout = TENSOR_TYPES[kind]
    if 0 in shape[:4]:
        return data, data
    last = sum((ne - 1) * nb for ne, nb in zip(shape[1:4], shape[5:], strict=True))
    last += (shape[0] // layout.block_elements - 1) * shape[4] + layout.block_bytes
    return data, data + last


def _check_graph(body: bytes) -> None:
    (count,) = struct.unpack_from("<I", body, 4)
    seen: set[int] = set()
    for at in range(12 + 8 * count, len(body), rpc.TENSOR_BYTES):
        tensor = body[at : at + rpc.TENSOR_BYTES]
        (identity,) = struct.unpack_from("<Q", tensor)
        (operation,) = struct.unpack_from("<I", tensor, 52)
        sources = struct.unpack_from("<11Q", tensor, 124)
        assert operation <= 91 or operation == 100
        assert all(source in seen or source in (0, identity) for source in sources)
        begin, end = _read(tensor)
        assert not begin or BASE <= begin <= end <= END
        seen.add(identity)
    assert set(struct.unpack_from(f"<{count}Q", body, 8)) <= seen


TARGETS = (
    Target(
        name="rpc-talk", samples=SAMPLES, make=_make_talk, feed=_feed, allowed=(RemoteProtocolError,), share=8
    ),
    Target(
        name="rpc-graph",
        samples=(talk.GRAPH,),
        make=_make_graph,
        feed=_feed,
        allowed=(RemoteProtocolError,),
        share=8,
    ),
    Target(
        name="rpc-pushed",
        samples=(talk.peer_hello(), talk.peer_data(), talk.peer_data(b"")),
        make=_make_pushed,
        feed=_feed_pushed,
        allowed=(RemoteProtocolError,),
        share=2,
    ),
    Target(
        name="rpc-answers",
        samples=(
            talk.answer(struct.pack("<QQ", HANDLE + 1, ROOM)),
            talk.answer(struct.pack("<Q", BASE)),
            talk.answer(bytes(16)),
        ),
        make=_make_talk,
        feed=_feed_answers,
        allowed=(RemoteProtocolError,),
        share=2,
    ),
    Target(
        name="rpc-saving",
        samples=(
            talk.hello_answer(),
            talk.hello_answer(talk.caps(ANNOUNCED)) + talk.answer(bytes(2 * rpc.DEVICE_INFO_BYTES)),
            talk.hello_answer(talk.caps(ANNOUNCED))
            + talk.answer(struct.pack("<QQQQBB6x", 32, 1 << 40, 5 << 30, 6 << 30, 1, 0)),
            talk.answer(bytes(4)),
            talk.answer(bytes(8)) * 2,
            talk.answer(bytes(16)),
            talk.answer(bytes(2)),
        ),
        make=_make_talk,
        feed=_feed_saving,
        allowed=(RemoteProtocolError,),
        share=2,
    ),
)
