"""Half rows at the firewall: all of a tensor of F32, in exactly their bytes, once both sides said so."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall
from meshd.rpc.missed_tensors import Missed, TensorKeeping

from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, HALF_BYTES, ROOM, Talk, Tensor

MATRIX = Tensor(ne=(4, 3, 2, 1), nb=(4, 16, 48, 96))
MATRIX_BYTES = 2 * 5 * 6
AT_END = Tensor(data=BASE + ROOM - 16)
HONEST = (
    talk.set_half(Tensor()),
    talk.set_half(MATRIX, bytes(MATRIX_BYTES)),
    talk.get_half(AT_END),
    talk.get_half(replace(MATRIX, nb=(4, 16, 48, 7)), size=MATRIX_BYTES),  # there is one of the last
    talk.push_half(MATRIX, size=MATRIX_BYTES),
    talk.take_half(AT_END),
)


def agreed(announced: int = rpc.FEATURE_F16 | rpc.FEATURE_PUSH) -> Talk:
    """Neighbour 1 was asked about, and the session named, where that was announced."""
    it = Talk(announced=talk.caps(announced))
    if announced & rpc.FEATURE_PUSH:
        it.say(talk.session() + talk.check(1))
        it.hear(talk.answer(b"\1"))
    return it


@pytest.mark.parametrize("message", HONEST, ids=lambda message: rpc.COMMANDS[message[0]].name)
def test_what_is_agreed_on_goes_on_as_it_is(message: bytes) -> None:
    assert agreed().firewall.from_peer(message) is message


@pytest.mark.parametrize("message", HONEST, ids=lambda message: rpc.COMMANDS[message[0]].name)
def test_nothing_of_it_without_the_feature(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"command {message[0]}"):
        agreed(rpc.FEATURE_PUSH).say(message)
    if message[0] in (rpc.PUSH_TENSOR_F16, rpc.TAKE_TENSOR_F16):
        with pytest.raises(RemoteProtocolError, match=f"command {message[0]}"):
            agreed(rpc.FEATURE_F16).say(message)


def test_the_answer_is_as_long_as_the_rows() -> None:
    it = agreed()
    it.say(talk.get_half(MATRIX, size=MATRIX_BYTES))
    assert it.hear(talk.answer(bytes(MATRIX_BYTES)))
    it.say(talk.get_half(MATRIX, size=MATRIX_BYTES))
    with pytest.raises(RemoteProtocolError, match="GET_TENSOR_F16: an answer of 96 bytes"):
        it.hear(talk.answer(bytes(96)))


WRONG: tuple[tuple[str, Tensor, int, int], ...] = (
    ("another part", Tensor(), 0, HALF_BYTES - 1),
    ("another part", Tensor(), 0, HALF_BYTES + 1),
    ("another part", Tensor(), 0, 16),
    ("another part", Tensor(), 2, HALF_BYTES),
    ("another part", MATRIX, 0, HALF_BYTES),
    ("with gaps", replace(MATRIX, nb=(4, 32, 96, 192)), 0, MATRIX_BYTES),
    ("with gaps", replace(MATRIX, nb=(12, 4, 48, 96)), 0, MATRIX_BYTES),
    ("no half rows", Tensor(kind=talk.I32), 0, HALF_BYTES),
    ("no half rows", Tensor(ne=(0, 1, 1, 1), nb=(4, 0, 0, 0)), 0, 2),
    ("no half rows", Tensor(ne=(4, 0, 1, 1)), 0, 0),
    ("no half rows", Tensor(kind=talk.F16, ne=(4, 1, 1, 1), nb=(2, 8, 8, 8)), 0, HALF_BYTES),
    ("no half rows", Tensor(ne=((1 << 20) + 1, 1, 1, 1)), 0, 2 * ((1 << 20) + 2)),
    ("outside its buffer", Tensor(data=BASE + ROOM - 12), 0, HALF_BYTES),
    ("without a buffer", Tensor(buffer=0, data=0), 0, HALF_BYTES),
)


@pytest.mark.parametrize(("why", "tensor", "offset", "size"), WRONG)
@pytest.mark.parametrize("make", [talk.get_half, talk.push_half, talk.take_half])
def test_another_tensor_or_size_is_refused(
    make: Callable[..., bytes], why: str, tensor: Tensor, offset: int, size: int
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        agreed().say(make(tensor, offset=offset, size=size))


@pytest.mark.parametrize(("why", "tensor", "offset", "size"), WRONG)
def test_what_is_set_is_judged_before_its_data(why: str, tensor: Tensor, offset: int, size: int) -> None:
    head = rpc.SET_TENSOR_HEAD_BYTES
    begun = talk.set_half(tensor, b"", offset=offset)
    message = rpc.REQUEST.pack(rpc.SET_TENSOR_F16, head + size) + begun[rpc.REQUEST.size :]
    with pytest.raises(RemoteProtocolError, match=why):
        agreed().say(message)


def test_neighbours_and_sessions_are_needed_as_ever() -> None:
    with pytest.raises(RemoteProtocolError, match="PUSH_TENSOR_F16: neighbour 2, which was not confirmed"):
        agreed().say(talk.push_half(Tensor(), number=2))
    with pytest.raises(RemoteProtocolError, match="TAKE_TENSOR_F16: before PEER_SESSION"):
        Talk().say(talk.take_half(Tensor()))


def test_data_flow_through() -> None:
    rows = Tensor(ne=(4, 64, 1, 1), nb=(4, 16, 1024, 1024))
    message, it = talk.set_half(rows, bytes(640)), agreed()
    held = rpc.REQUEST.size + rpc.SET_TENSOR_HEAD_BYTES
    assert it.say(message[:held]) == message[:held]
    assert it.firewall.from_peer(message[held:]) == message[held:] and not it.firewall.held_bytes


class _Nothing:
    def loaded(self, _digest: bytes) -> None:
        raise AssertionError("nobody has said so")

    def piece(self, _tensor: Missed, _offset: int, _data: bytes, *, last: bool) -> bool:
        raise AssertionError(f"half floats are no weights (last: {last})")


def test_rounded_data_are_never_kept() -> None:
    it = Talk(TensorKeeping(_Nothing()))
    it.say(talk.load(talk.load_entry()))
    it.hear(talk.answer(bytes([rpc.NO_SUCH_HASH])))
    it.say(talk.set_half(Tensor()))


@given(
    st.tuples(*[st.sampled_from([0, 1, 2, 4, 1 << 20, (1 << 32) - 1])] * 4),
    st.tuples(*[st.sampled_from([0, 4, 8, 16, 32, 1 << 31, (1 << 32) - 1])] * 4),
    st.integers(0, 2),
    st.sampled_from([0, 2, 4, 6, 10, 20, 40, (1 << 64) - 2]),
)
def test_what_passes_lies_in_the_buffer(
    ne: tuple[int, int, int, int], nb: tuple[int, int, int, int], kind: int, size: int
) -> None:
    it = agreed()
    try:
        it.say(talk.get_half(Tensor(ne=ne, nb=nb, kind=kind), size=size))
    except RemoteProtocolError:
        return
    count = ne[0] * ne[1] * ne[2] * ne[3]
    assert kind == talk.F32 and 0 < 4 * count <= ROOM and size == 2 * (ne[0] + 1) * count // ne[0]


def test_a_firewall_learns_the_feature_from_both_sides() -> None:
    for said, answered, ok in ((32, 32, True), (32, 0, False), (0, 32, False)):
        firewall = Firewall()
        firewall.from_peer(talk.hello(talk.caps(said)))
        firewall.to_peer(talk.hello_answer(talk.caps(answered)))
        firewall.from_peer(talk.alloc())
        firewall.to_peer(talk.answer(struct.pack("<QQ", talk.HANDLE, ROOM)))
        firewall.from_peer(talk.on_buffer(rpc.BUFFER_GET_BASE))
        firewall.to_peer(talk.answer(struct.pack("<Q", BASE)))
        if ok:
            assert firewall.from_peer(talk.get_half(Tensor()))
        else:
            with pytest.raises(RemoteProtocolError, match="command 74"):
                firewall.from_peer(talk.get_half(Tensor()))
