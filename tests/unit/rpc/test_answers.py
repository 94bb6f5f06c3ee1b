"""Answers: kept where they cannot change, forgotten where they can, and never those to another question."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.rpc import protocol as rpc
from meshd.rpc.answers import MAX_ANSWERS, KnownAnswers

from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor

DEVICE = rpc.U32.pack(0)
MEMORY = rpc.PAIR64.pack(1 << 30, 2 << 30)
BY_SIZE, PADDED, ASK = 1, 2, 0


def size_of(tensor: Tensor, *sources: Tensor) -> bytes:
    """The body of GET_ALLOC_SIZE."""
    return talk.alloc_size(tensor, sources)[rpc.REQUEST.size :]


def table(*rules: int) -> bytes:
    return b"".join(struct.pack("<QQQQBB6x", 32, 1 << 40, 5 << 30, 6 << 30, rule, 0) for rule in rules)


@pytest.mark.parametrize(
    ("number", "body", "answer"),
    [
        (rpc.DEVICE_COUNT, b"", rpc.U32.pack(2)),
        (rpc.GET_ALIGNMENT, DEVICE, rpc.U64.pack(32)),
        (rpc.GET_MAX_SIZE, DEVICE, rpc.U64.pack(1 << 40)),
        (rpc.GET_ALLOC_SIZE, size_of(Tensor()), rpc.U64.pack(16)),
        (rpc.GET_DEVICE_MEMORY, DEVICE, MEMORY),
    ],
)
def test_an_answer_is_kept_for_its_own_question(number: int, body: bytes, answer: bytes) -> None:
    answers = KnownAnswers()
    assert answers.find(number, body) is None
    answers.learn(number, body, answer, age=answers.age)
    assert answers.find(number, body) == answer
    assert answers.find(rpc.BUFFER_GET_BASE, body) is None
    if body:
        assert answers.find(number, rpc.U32.pack(1) + body[4:]) is None


def test_memory_is_forgotten_with_every_change_and_not_learnt_across_one() -> None:
    answers = KnownAnswers()
    answers.learn(rpc.GET_DEVICE_MEMORY, DEVICE, MEMORY, age=answers.age)
    answers.learn(rpc.GET_ALIGNMENT, DEVICE, rpc.U64.pack(32), age=answers.age)
    asked_at = answers.age
    answers.changed()
    assert answers.find(rpc.GET_DEVICE_MEMORY, DEVICE) is None
    assert answers.find(rpc.GET_ALIGNMENT, DEVICE) == rpc.U64.pack(32)
    answers.learn(rpc.GET_DEVICE_MEMORY, DEVICE, MEMORY, age=asked_at)
    assert answers.find(rpc.GET_DEVICE_MEMORY, DEVICE) is None


SHAPED = Tensor(id=7, kind=talk.Q4_0, ne=(64, 2, 1, 1), nb=(18, 36, 72, 72), op=talk.MUL_MAT, sources=(8, 9))
SOURCES = (Tensor(id=8), Tensor(id=9))


def test_what_a_tensor_takes_does_not_depend_on_its_names_and_places() -> None:
    answers = KnownAnswers()
    answers.learn(rpc.GET_ALLOC_SIZE, size_of(SHAPED, *SOURCES), rpc.U64.pack(99), age=0)
    other = Tensor(
        id=70,
        kind=SHAPED.kind,
        ne=SHAPED.ne,
        nb=SHAPED.nb,
        op=SHAPED.op,
        sources=(80, 90),
        data=talk.BASE + 64,
    )
    same = size_of(other, Tensor(id=80, data=talk.BASE + 8), Tensor(id=90))
    assert answers.find(rpc.GET_ALLOC_SIZE, same) == rpc.U64.pack(99)


@pytest.mark.parametrize(
    "other",
    [
        size_of(SHAPED, Tensor(id=8)),
        size_of(SHAPED, Tensor(id=8, kind=talk.I32), Tensor(id=9)),
        size_of(SHAPED, Tensor(id=8, ne=(2, 2, 1, 1)), Tensor(id=9)),
        size_of(Tensor(id=7, ne=(64, 2, 1, 1), op=talk.MUL_MAT, sources=(8, 9)), *SOURCES),
        size_of(Tensor(kind=SHAPED.kind, ne=SHAPED.ne, nb=SHAPED.nb, op=talk.ADD), *SOURCES),
        size_of(Tensor(kind=SHAPED.kind, ne=SHAPED.ne, nb=SHAPED.nb, op=SHAPED.op, view=8), *SOURCES),
        size_of(Tensor(kind=SHAPED.kind, ne=SHAPED.ne, nb=SHAPED.nb, op=SHAPED.op, param=1), *SOURCES),
        size_of(Tensor(kind=SHAPED.kind, ne=SHAPED.ne, nb=SHAPED.nb, op=SHAPED.op, buffer=5), *SOURCES),
    ],
)
def test_another_shape_operation_or_source_is_another_question(other: bytes) -> None:
    answers = KnownAnswers()
    answers.learn(rpc.GET_ALLOC_SIZE, size_of(SHAPED, *SOURCES), rpc.U64.pack(99), age=0)
    assert answers.find(rpc.GET_ALLOC_SIZE, other) is None


def test_the_table_behind_hello_answers_for_the_devices_that_it_has() -> None:
    answers = KnownAnswers()
    answers.learn_table(table(BY_SIZE, ASK), age=answers.age)
    assert answers.find(rpc.DEVICE_COUNT, b"") == rpc.U32.pack(2)
    for number in (0, 1):
        device = rpc.U32.pack(number)
        assert answers.find(rpc.GET_ALIGNMENT, device) == rpc.U64.pack(32)
        assert answers.find(rpc.GET_MAX_SIZE, device) == rpc.U64.pack(1 << 40)
        assert answers.find(rpc.GET_DEVICE_MEMORY, device) == rpc.PAIR64.pack(5 << 30, 6 << 30)
    for question in (rpc.GET_ALIGNMENT, rpc.GET_MAX_SIZE, rpc.GET_DEVICE_MEMORY):
        assert answers.find(question, rpc.U32.pack(2)) is None
    answers.changed()
    assert answers.find(rpc.GET_DEVICE_MEMORY, DEVICE) is None


QUANTISED = Tensor(kind=talk.Q4_0, ne=(64, 2, 1, 1), nb=(18, 36, 72, 72))


@pytest.mark.parametrize(
    ("rule", "tensor", "size"),
    [
        (BY_SIZE, Tensor(), 16),
        (BY_SIZE, QUANTISED, 72),
        (BY_SIZE, SHAPED, 72),
        (BY_SIZE, Tensor(ne=(2, 3, 1, 1), nb=(4, 100, 300, 300)), 8 + 200),
        (PADDED, Tensor(), 16),
        (PADDED, QUANTISED, 72 + (512 - 64) // 32 * 18),
        (PADDED, Tensor(kind=talk.Q4_0, ne=(512, 1, 1, 1), nb=(18, 288, 288, 288)), 288),
        (PADDED, Tensor(kind=talk.Q4_0, ne=(64, 2, 1, 1), nb=(18, 36, 72, 72), view=4), 72),
        (PADDED, SHAPED, None),
        (ASK, QUANTISED, None),
        (3, QUANTISED, None),
        (BY_SIZE, Tensor(kind=999), None),
        (BY_SIZE, Tensor(ne=(0, 1, 1, 1)), None),
        (BY_SIZE, Tensor(ne=(1, 1 << 31, 1 << 31, 1 << 31), nb=(4,) + (1 << 31,) * 3), None),
    ],
)
def test_a_rule_says_what_a_tensor_takes_or_leaves_it_to_the_server(
    rule: int, tensor: Tensor, size: int | None
) -> None:
    answers = KnownAnswers()
    answers.learn_table(table(rule), age=answers.age)
    expected = None if size is None else rpc.U64.pack(size)
    assert answers.find(rpc.GET_ALLOC_SIZE, size_of(tensor)) == expected


def test_in_buffers_of_cpus_a_tensor_takes_its_bytes() -> None:
    answers = KnownAnswers(plain_sizes=True)
    assert answers.find(rpc.GET_ALLOC_SIZE, size_of(SHAPED, *SOURCES)) == rpc.U64.pack(72)
    assert answers.find(rpc.GET_ALIGNMENT, DEVICE) is None
    answers.learn_table(table(ASK), age=answers.age)
    assert answers.find(rpc.GET_ALLOC_SIZE, size_of(SHAPED, *SOURCES)) is None, "the worker knows better"


@given(st.binary(min_size=3260, max_size=3260), st.sampled_from([BY_SIZE, PADDED, ASK, 255]))
def test_any_question_is_answered_or_left(body: bytes, rule: int) -> None:
    assert len(size_of(Tensor())) == 3260
    answers = KnownAnswers()
    answers.learn_table(table(rule), age=answers.age)
    found = answers.find(rpc.GET_ALLOC_SIZE, DEVICE + body[4:])
    assert found is None or len(found) == 8


def test_the_number_of_answers_is_bounded() -> None:
    answers = KnownAnswers()
    for number in range(MAX_ANSWERS + 1):
        answers.learn(rpc.GET_ALIGNMENT, rpc.U32.pack(number), b"8 bytes.", age=0)
    assert answers.find(rpc.GET_ALIGNMENT, rpc.U32.pack(MAX_ANSWERS - 1)) is not None
    assert answers.find(rpc.GET_ALIGNMENT, rpc.U32.pack(MAX_ANSWERS)) is None
