"""Filling: a stock server seems to know the extension, and its requests are taken out, at any split."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall
from meshd.rpc.stock_worker_fill import Filling, Load, loaded

from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, HANDLE, Talk, Tensor

STOCK = bytes(24)
LOAD = talk.load(
    talk.load_entry(), talk.load_entry(kind=talk.Q4_0, ne=(64, 2, 1, 1), size=72, data=BASE + 64)
)
BEFORE = talk.hello() + talk.alloc() + talk.set_tensor(Tensor(), bytes(16))
AFTER = talk.on_buffer(rpc.BUFFER_GET_BASE) + talk.get_tensor(Tensor())


@given(st.lists(st.integers(0, 2000), max_size=10))
def test_requests_for_tensors_are_taken_out_at_any_split(cuts: list[int]) -> None:
    data = BEFORE + LOAD + LOAD + AFTER
    edges = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    filling, passed, at = Filling(), b"", []
    for begin, end in pairwise(edges):
        for part in filling.requests(data[begin:end]):
            if isinstance(part, Load):
                at.append(len(passed))
                assert [wanted.size for wanted in part.wanted] == [16, 72]
            else:
                passed += part
    assert passed == BEFORE + AFTER
    assert at == [len(BEFORE)] * 2


def test_what_is_wanted_is_written_as_the_head_would() -> None:
    digest, name = bytes(range(32)), b"blk.0.ffn_up.weight"
    entry = talk.load_entry(kind=talk.Q4_0, ne=(64, 2, 1, 1), size=72)[:44] + digest + name.ljust(64, b"\0")
    [load] = [part for part in Filling().requests(talk.load(entry)) if isinstance(part, Load)]
    [wanted] = load.wanted
    assert (wanted.digest, wanted.kind, wanted.size) == (digest, talk.Q4_0, 72)
    written = wanted.piece(36, bytes(36))
    tensor = Tensor(kind=talk.Q4_0, ne=(64, 2, 1, 1), nb=(18, 36, 72, 72))
    expected = talk.set_tensor(tensor, bytes(36), offset=36)
    assert written.replace(name.ljust(64, b"\0"), b"name".ljust(64, b"\0")) == expected
    assert Talk().say(written) == written, "the firewall would let it pass"


@pytest.mark.parametrize(
    ("asked", "told"), [(talk.CAPS, talk.caps(rpc.FEATURE_LOAD)), (STOCK, STOCK), (talk.caps(6), STOCK)]
)
def test_hello_offers_what_the_head_knows(asked: bytes, told: bytes) -> None:
    filling = Filling()
    filling.requests(talk.hello(asked))
    rest = talk.answer(bytes(4))
    filling.requests(talk.request(rpc.DEVICE_COUNT))
    answers = talk.hello_answer(STOCK) + rest
    seen = b"".join(filling.answers(answers[at : at + 5]) for at in range(0, len(answers), 5))
    assert seen == talk.hello_answer(told) + rest


def test_a_request_for_tensors_waits_for_the_answers_of_before_and_no_others() -> None:
    filling = Filling()
    before = talk.hello() + talk.set_tensor(Tensor()) + talk.get_tensor(Tensor())
    [load] = [part for part in filling.requests(before + LOAD + AFTER) if isinstance(part, Load)]
    filling.answers(talk.hello_answer(STOCK))
    answer = talk.answer(bytes(16))
    for byte in answer:
        assert not filling.has_answered(load.answers_before)
        filling.answers(bytes([byte]))
    assert filling.has_answered(load.answers_before)


def test_the_firewall_before_it_lets_request_and_answer_pass() -> None:
    firewall, filling = Firewall(), Filling()

    def head(data: bytes) -> list[bytes | memoryview | Load]:
        return filling.requests(firewall.from_peer(data))

    def server(data: bytes) -> bytes:
        return bytes(firewall.to_peer(filling.answers(data)))

    head(talk.hello() + talk.alloc())
    server(talk.hello_answer(STOCK) + talk.answer(struct.pack("<QQ", HANDLE, 4096)))
    head(talk.on_buffer(rpc.BUFFER_GET_BASE))
    server(talk.answer(struct.pack("<Q", BASE)))
    [load] = [part for part in head(LOAD) if isinstance(part, Load)]
    assert len(load.wanted) == 2
    assert firewall.to_peer(loaded(b"\0\1")) == talk.answer(b"\0\1")
