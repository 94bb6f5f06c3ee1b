"""Keeping: what was asked for by content, missed and then sent is recognised; nothing else is."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.missed_tensors import MAX_WANTED, Missed, TensorKeeping

from tests.unit.rpc.talk import BASE, ROOM, Talk, Tensor, answer, load, load_entry, set_tensor

D1, D2, D3 = (bytes([n]) * 32 for n in (1, 2, 3))
MISS, HIT = rpc.NO_SUCH_HASH, rpc.LOADED


class FakeSink:
    """Puts together what it gets; refuses tensors in `refuses`."""

    def __init__(self) -> None:
        self.hits: list[bytes] = []
        self.coming: dict[bytes, bytearray] = {}
        self.whole: dict[bytes, bytes] = {}
        self.pieces = 0
        self.refuses: set[bytes] = set()

    def loaded(self, digest: bytes) -> None:
        self.hits.append(digest)

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        self.pieces += 1
        if tensor.digest in self.refuses:
            return False
        there = self.coming.setdefault(tensor.digest, bytearray(tensor.size))
        there[offset : offset + len(data)] = data
        if last:
            self.whole[tensor.digest] = bytes(self.coming.pop(tensor.digest))
        return True


def tensor(number: int, *, floats: int = 4) -> Tensor:
    size = 4 * floats
    return Tensor(data=BASE + 64 * number, ne=(floats, 1, 1, 1), nb=(4, size, size, size))


def entry(number: int, digest: bytes, *, floats: int = 4) -> bytes:
    return load_entry(data=BASE + 64 * number, size=4 * floats, ne=(floats, 1, 1, 1), digest=digest)


def asked(sink: FakeSink, states: Sequence[int]) -> Talk:
    """A connection that has asked for three tensors of 16 bytes."""
    talk = Talk(TensorKeeping(sink))
    talk.say(load(entry(0, D1), entry(1, D2), entry(2, D3)))
    talk.hear(answer(bytes(states)))
    return talk


def test_what_was_missed_and_comes_is_kept() -> None:
    sink = FakeSink()
    talk = asked(sink, (HIT, MISS, MISS))
    assert sink.hits == [D1]
    talk.say(set_tensor(tensor(2), b"c" * 16) + set_tensor(tensor(1), b"b" * 16))
    assert sink.whole == {D3: b"c" * 16, D2: b"b" * 16}
    talk.say(set_tensor(tensor(1), b"x" * 16))
    assert sink.pieces == 2, "what it has come to hold later is an input, no weight"


@given(order=st.permutations([0, 4, 8, 12]), cuts=st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_in_whatever_order_and_pieces_it_comes(order: Sequence[int], cuts: Sequence[int]) -> None:
    sink = FakeSink()
    talk = asked(sink, (MISS, MISS, MISS))
    content = bytes(range(16))
    stream = b"".join(set_tensor(tensor(0), content[at : at + 4], offset=at) for at in order)
    stream += set_tensor(tensor(1), content)
    passed, begin, number = b"", 0, 0
    while begin < len(stream):
        end = begin + cuts[number % len(cuts)]
        passed += talk.say(stream[begin:end])
        begin, number = end, number + 1
    assert passed == stream
    assert sink.whole == {D1: content, D2: content}
    assert talk.firewall.held_bytes == 0


@pytest.mark.parametrize("state", [rpc.TYPE_OR_SIZE, 5, HIT])
def test_what_is_here_in_some_way_is_not_kept(state: int) -> None:
    sink = FakeSink()
    talk = asked(sink, (state, state, state))
    talk.say(set_tensor(tensor(0)))
    assert sink.pieces == 0


@pytest.mark.parametrize("state", [rpc.UNREADABLE, rpc.FILE_CHANGED])
def test_what_cannot_be_read_any_more_is_kept(state: int) -> None:
    sink = FakeSink()
    asked(sink, (state, HIT, HIT)).say(set_tensor(tensor(0), b"a" * 16))
    assert sink.whole == {D1: b"a" * 16}


def test_nothing_that_was_not_asked_for_is_kept() -> None:
    sink = FakeSink()
    talk = Talk(TensorKeeping(sink))
    talk.say(set_tensor(tensor(0)))
    talk.say(load(entry(0, D1)))
    talk.say(set_tensor(tensor(0)))  # before the answer: nobody knows whether it is missed
    assert sink.pieces == 0
    talk.hear(answer(bytes([MISS])))
    talk.say(set_tensor(tensor(1)))  # another place
    assert sink.pieces == 0


def test_more_than_it_has_is_no_tensor() -> None:
    sink = FakeSink()
    talk = asked(sink, (MISS, MISS, MISS))
    talk.say(set_tensor(tensor(0), bytes(12)))
    talk.say(set_tensor(tensor(0), bytes(12)))
    talk.say(set_tensor(tensor(0), bytes(4), offset=12))
    assert D1 not in sink.whole and sink.pieces == 1
    talk.say(set_tensor(tensor(1, floats=8), bytes(20)))
    assert sink.pieces == 1, "a longer tensor at the place of a shorter one"


def test_what_is_refused_is_not_given_again() -> None:
    sink = FakeSink()
    sink.refuses = {D1}
    talk = asked(sink, (MISS, MISS, MISS))
    for at in range(0, 16, 4):
        talk.say(set_tensor(tensor(0), bytes(4), offset=at))
    talk.say(set_tensor(tensor(1), b"b" * 16))
    assert sink.pieces == 2
    assert sink.whole == {D2: b"b" * 16}
    sink.refuses = {D3}
    message = set_tensor(tensor(2))
    for at in range(0, len(message), 5):
        talk.say(message[at : at + 5])
    assert sink.pieces == 3, "the rest of the message is left alone as well"


def test_several_requests_are_answered_in_their_order() -> None:
    sink = FakeSink()
    talk = Talk(TensorKeeping(sink))
    talk.say(load(entry(0, D1)) + load(entry(1, D2), entry(2, D3)))
    talk.hear(answer(bytes([MISS])) + answer(bytes([HIT, MISS])))
    talk.say(set_tensor(tensor(0), b"a" * 16) + set_tensor(tensor(2), b"c" * 16))
    assert sink.hits == [D2]
    assert sink.whole == {D1: b"a" * 16, D3: b"c" * 16}


def test_what_is_wanted_is_bounded_and_answers_stay_in_order() -> None:
    sink = FakeSink()
    talk = Talk(TensorKeeping(sink))
    many = [load_entry(data=BASE + 4 * n, size=4, ne=(1, 1, 1, 1), digest=D1) for n in range(ROOM // 4)]
    rounds = MAX_WANTED // len(many)
    for _ in range(rounds + 2):
        talk.say(load(*many))
    talk.say(load(entry(0, D2)))
    assert talk.firewall.held_bytes == 0
    for _ in range(rounds + 2):
        talk.hear(answer(bytes([HIT]) * len(many)))
    assert len(sink.hits) == MAX_WANTED, "what is over the limit is not looked at"
    talk.hear(answer(bytes([MISS])))
    talk.say(set_tensor(tensor(0)))
    assert sink.pieces == 0
    talk.say(load(entry(0, D2)))
    talk.hear(answer(bytes([MISS])))
    talk.say(set_tensor(tensor(0)))
    assert sink.pieces == 1, "there is room again"


def test_a_refused_connection_gives_no_tensor() -> None:
    sink = FakeSink()
    talk = asked(sink, (MISS, MISS, MISS))
    talk.say(set_tensor(tensor(0), bytes(16))[:-8])
    with pytest.raises(RemoteProtocolError):
        talk.say(bytes(8) + b"\xff" + bytes(8))
    before = sink.pieces
    with pytest.raises(RemoteProtocolError):
        talk.say(set_tensor(tensor(1)))
    assert sink.pieces == before


def test_what_is_sent_as_it_was_sent_before_it_was_missed_is_kept() -> None:
    """The firewall judges a request once; whether somebody waits for what it brings is asked each time."""
    sink = FakeSink()
    talk = Talk(TensorKeeping(sink))
    first, second = (set_tensor(tensor(0), bytes([n]) * 16) for n in (1, 2))
    assert talk.say(first + first) == first + first
    talk.say(load(entry(0, D1)))
    talk.hear(answer(bytes([MISS])))
    assert talk.say(second) == second
    assert sink.whole == {D1: bytes([2]) * 16}
    assert talk.say(first) == first
    assert sink.whole == {D1: bytes([2]) * 16}
