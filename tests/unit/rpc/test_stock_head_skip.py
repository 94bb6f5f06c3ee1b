"""Saving: a stock client's weights are parted from the rest at any split, its questions answered."""

import struct
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.model.weights_index import TensorEntry
from meshd.rpc import protocol as rpc
from meshd.rpc.answers import KnownAnswers
from meshd.rpc.firewall import Firewall
from meshd.rpc.stock_head_skip import (
    ANNOUNCED,
    Begin,
    ImmediateReply,
    LoadStates,
    Part,
    Saving,
    Settle,
    TensorData,
)

from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, HANDLE, Tensor

STOCK = bytes(24)
WHOLE = bytes(range(16))
WEIGHT = TensorEntry(0, talk.F32, 0, 16, bytes(range(32)), "name")
TENSORS = {WEIGHT.name: WEIGHT}
TABLE = struct.pack("<QQQQBB6x", 32, 1 << 40, 5 << 30, 6 << 30, 1, 0)


def other(data: bytes = bytes(8)) -> bytes:
    """SET_TENSOR of something that is in no file."""
    return talk.set_tensor(Tensor(), data).replace(b"name".ljust(64, b"\0"), b"mask".ljust(64, b"\0"))


def greeted(
    features: int = rpc.FEATURE_LOAD, *, answers: KnownAnswers | None = None, table: bytes = TABLE
) -> Saving:
    saving = Saving(TENSORS, answers or KnownAnswers())
    list(saving.requests(talk.hello(STOCK)))
    saving.answers(talk.hello_answer(talk.caps(features) if features else STOCK))
    if features & rpc.FEATURE_INFO:
        saving.answers(talk.answer(table))
    return saving


def to_worker(parts: Iterable[Part]) -> bytes:
    return b"".join(part for part in parts if isinstance(part, bytes | memoryview))


def to_client(parts: Iterable[bytes | memoryview | LoadStates]) -> bytes:
    return b"".join(part for part in parts if not isinstance(part, LoadStates))


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    for begin, end in pairwise([0, *sorted(cut % len(data) for cut in cuts), len(data)]):
        yield data[begin:end]


@given(st.lists(st.integers(0, 3000), max_size=12))
def test_weights_are_taken_out_at_any_split(cuts: list[int]) -> None:
    before, between = other() + talk.alloc(), talk.GRAPH + talk.get_tensor(Tensor())
    data = (
        before + talk.set_tensor(Tensor(), WHOLE) * 2 + between + talk.set_tensor(Tensor(), WHOLE) + other()
    )
    saving = greeted()
    seen = [part for piece in pieces(data, cuts) for part in saving.requests(piece)]
    assert to_worker(seen) == before + between + other()
    assert b"".join(bytes(part.data) for part in seen if isinstance(part, TensorData)) == WHOLE * 3
    order = [type(part).__name__ for part in seen if isinstance(part, Begin | Settle)]
    assert order == ["Begin", "Begin", "Settle", "Begin", "Settle"]


def test_a_weight_is_asked_for_as_the_firewall_lets_it_pass() -> None:
    saving = greeted()
    begin, data = saving.requests(talk.set_tensor(Tensor(), WHOLE))
    assert isinstance(begin, Begin)
    assert isinstance(data, TensorData)
    assert begin.request + bytes(data.data) == talk.set_tensor(Tensor(), WHOLE)
    assert begin.entry[rpc.LOAD_HASH] == WEIGHT.digest
    assert talk.Talk().say(saving.load([begin.entry])) == talk.load(begin.entry)


@pytest.mark.parametrize(
    "sent",
    [
        talk.set_tensor(Tensor(), WHOLE[:8]),
        talk.set_tensor(Tensor(), WHOLE[:12], offset=4),
        talk.set_tensor(Tensor(), WHOLE, offset=4),
        talk.set_tensor(Tensor(kind=talk.I32), WHOLE),
        talk.set_tensor(Tensor(ne=(2, 2, 1, 1), nb=(4, 16, 16, 16)), WHOLE),
        talk.set_tensor(Tensor(ne=(8, 1, 1, 1), nb=(4, 32, 32, 32)), WHOLE),
        talk.set_tensor(Tensor(buffer=0), WHOLE),
    ],
)
def test_what_is_not_the_whole_tensor_of_the_index_goes_as_data(sent: bytes) -> None:
    parts = list(greeted().requests(sent))
    assert to_worker(parts) == sent
    assert [part.missed for part in parts if isinstance(part, Begin)] == ["tensor-not-in-index"]
    assert not any(isinstance(part, TensorData) for part in parts)


@pytest.mark.parametrize(
    ("features", "why"), [(0, "stock-worker"), (rpc.FEATURE_INFO, "worker-has-no-files")]
)
def test_a_worker_that_fills_nothing_gets_data(features: int, why: str) -> None:
    sent = talk.set_tensor(Tensor(), WHOLE)
    parts = list(greeted(features).requests(sent))
    assert to_worker(parts) == sent
    assert [part.missed for part in parts if isinstance(part, Begin)] == [why]


@pytest.mark.parametrize("theirs", [STOCK, talk.caps(rpc.FEATURE_LOAD), talk.caps(ANNOUNCED)])
def test_hello_announces_for_the_client_which_gets_stocks_answer(theirs: bytes) -> None:
    saving = Saving(TENSORS, KnownAnswers())
    assert to_worker(saving.requests(talk.hello(STOCK))) == talk.hello(talk.caps(ANNOUNCED))
    answer = talk.hello_answer(theirs)
    if theirs == talk.caps(ANNOUNCED):
        answer += talk.answer(TABLE)
    heard = b"".join(to_client(saving.answers(answer[at : at + 5])) for at in range(0, len(answer), 5))
    assert heard == talk.hello_answer(STOCK)


def test_the_next_connection_is_greeted_at_once() -> None:
    answers = KnownAnswers()
    greeted(ANNOUNCED, answers=answers)
    saving = Saving(TENSORS, answers)
    hello, reply = saving.requests(talk.hello(STOCK))
    assert hello == talk.hello(talk.caps(ANNOUNCED)), "the worker is greeted all the same"
    assert reply == ImmediateReply(talk.hello_answer(STOCK))
    [count] = saving.requests(talk.request(rpc.DEVICE_COUNT))
    assert count == ImmediateReply(talk.answer(rpc.U32.pack(1)))
    greeting = talk.hello_answer(talk.caps(ANNOUNCED)) + talk.answer(TABLE)
    assert to_client(saving.answers(greeting)) == b""
    with pytest.raises(RemoteProtocolError, match="not the same"):
        changed = Saving(TENSORS, answers)
        list(changed.requests(talk.hello(STOCK)))
        changed.answers(talk.hello_answer(STOCK))


def ask(saving: Saving, request: bytes, answer: bytes) -> bool:
    """Whether the worker was asked."""
    parts = list(saving.requests(request))
    if to_worker(parts) == request:
        assert to_client(saving.answers(answer)) == answer
        return True
    assert parts == [ImmediateReply(answer)]
    return False


def test_a_question_crosses_once_and_memory_again_after_an_allocation() -> None:
    answers = KnownAnswers()
    saving = greeted(answers=answers)
    count = talk.request(rpc.DEVICE_COUNT), talk.answer(rpc.U32.pack(1))
    memory = talk.request(rpc.GET_DEVICE_MEMORY, rpc.U32.pack(0)), talk.answer(rpc.PAIR64.pack(5, 6))
    assert [ask(saving, *count), ask(saving, *memory)] == [True, True]
    assert [ask(saving, *count), ask(saving, *memory)] == [False, False]
    next_one = greeted(answers=answers)
    assert [ask(next_one, *count), ask(next_one, *memory)] == [False, False]
    assert ask(saving, talk.alloc(), talk.answer(struct.pack("<QQ", HANDLE, 4096)))
    assert [ask(saving, *count), ask(saving, *memory)] == [False, True]
    list(saving.requests(talk.on_buffer(rpc.FREE_BUFFER)))
    assert [ask(next_one, *count), ask(next_one, *memory)] == [False, True]
    list(saving.requests(talk.GRAPH))
    assert ask(saving, *memory)


def test_a_hash_is_denied_without_asking() -> None:
    assert list(greeted().requests(talk.set_hash(Tensor()))) == [ImmediateReply(talk.answer(b"\0"))]


def test_nothing_is_answered_before_an_answer_that_is_due() -> None:
    saving = greeted(ANNOUNCED)
    count = talk.request(rpc.DEVICE_COUNT)
    asked = talk.get_tensor(Tensor()) + count + talk.set_hash(Tensor())
    assert to_worker(saving.requests(asked)) == asked
    due = talk.answer(WHOLE) + talk.answer(rpc.U32.pack(1)) + talk.answer(b"\0")
    assert to_client(saving.answers(due)) == due


@given(st.lists(st.integers(0, 200), max_size=8))
def test_what_became_of_weights_is_kept_from_the_client_at_any_split(cuts: list[int]) -> None:
    saving = greeted()
    list(saving.requests(talk.get_tensor(Tensor())))
    saving.load([bytes(rpc.LOAD_ENTRY_BYTES)] * 2)
    list(saving.requests(talk.get_tensor(Tensor())))
    data = talk.answer(WHOLE) + talk.answer(b"\0\1") + talk.answer(WHOLE)
    parts = [part for piece in pieces(data, cuts) for part in saving.answers(piece)]
    assert to_client(parts) == talk.answer(WHOLE) * 2
    assert [part.states for part in parts if isinstance(part, LoadStates)] == [b"\0\1"]


@pytest.mark.parametrize(
    ("request_", "answer", "match"),
    [
        (talk.hello(STOCK), talk.answer(bytes(29)), "29 bytes"),
        (talk.request(rpc.DEVICE_COUNT), talk.answer(bytes(8)), "8 bytes"),
        (b"", talk.answer(b""), "nothing"),
    ],
)
def test_a_worker_that_breaks_the_rules_is_refused(request_: bytes, answer: bytes, match: str) -> None:
    saving = greeted() if request_ != talk.hello(STOCK) else Saving(TENSORS, KnownAnswers())
    list(saving.requests(request_))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match=match):
            saving.answers(answer)


@pytest.mark.parametrize("size", [41, (rpc.MAX_INFO_DEVICES + 1) * rpc.DEVICE_INFO_BYTES])
def test_a_table_that_is_none_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"{size} bytes"):
        greeted(ANNOUNCED, table=bytes(size))


def test_too_many_states_or_too_few_are_refused() -> None:
    saving = greeted()
    saving.load([bytes(rpc.LOAD_ENTRY_BYTES)] * 2)
    with pytest.raises(RemoteProtocolError, match="3 bytes, 2 were expected"):
        saving.answers(talk.answer(b"\0\0\0"))


@pytest.mark.parametrize(
    "sent",
    [
        talk.request(200),
        talk.load(talk.load_entry()),
        talk.request(rpc.SET_TENSOR, bytes(100)),
        talk.request(rpc.GET_ALLOC_SIZE, bytes(1 << 20)),
    ],
)
def test_a_client_of_another_protocol_is_refused(sent: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        list(greeted().requests(sent))


def test_both_ends_of_the_mesh_understand_each_other() -> None:
    """What goes to the worker passes its firewall, and its answers come back as stock's."""
    saving, firewall = Saving(TENSORS, KnownAnswers()), Firewall()

    def head(data: bytes) -> list[Part]:
        parts = list(saving.requests(data))
        sent = to_worker(parts)
        assert firewall.from_peer(sent) == sent
        return parts

    def worker(data: bytes) -> bytes:
        return to_client(saving.answers(firewall.to_peer(data)))

    head(talk.hello(STOCK))
    assert worker(talk.hello_answer(talk.caps(ANNOUNCED)) + talk.answer(TABLE)) == talk.hello_answer(STOCK)
    assert head(talk.request(rpc.DEVICE_COUNT)) == [ImmediateReply(talk.answer(rpc.U32.pack(1)))]
    head(talk.alloc())
    worker(talk.answer(struct.pack("<QQ", HANDLE, 4096)))
    head(talk.on_buffer(rpc.BUFFER_GET_BASE))
    worker(talk.answer(struct.pack("<Q", BASE)))
    begin = head(talk.set_tensor(Tensor(), WHOLE))[0]
    assert isinstance(begin, Begin)
    asked = saving.load([begin.entry])
    assert firewall.from_peer(asked) == asked
    assert worker(talk.answer(b"\0")) == b""
