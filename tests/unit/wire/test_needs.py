"""Marks and bits for tensors, and parts that are longer than one message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.wire.lease import NeededTensor, Needs, as_bits, decode, from_bits, in_messages, mark, split_marks
from meshd.wire.limits import MAX_NEEDED_ROWS


@given(st.lists(st.booleans(), max_size=70))
def test_flags_are_what_they_were(flags: list[bool]) -> None:
    bits = as_bits(flags)
    assert len(bits) == -(-len(flags) // 8)
    assert from_bits(bits, len(flags)) == flags


@given(st.binary(max_size=9), st.integers(0, 80))
def test_any_bits_give_as_many_flags_as_are_wanted(bits: bytes, count: int) -> None:
    assert len(from_bits(bits, count)) == count
    assert not any(from_bits(bits, count)[8 * len(bits) :])


def test_marks_are_read_one_by_one() -> None:
    digests = [bytes([number]) * 32 for number in range(3)]
    assert split_marks(b"".join(map(mark, digests))) == list(map(mark, digests))
    assert split_marks(b"") == []


@pytest.mark.parametrize("count", [0, 1, MAX_NEEDED_ROWS, MAX_NEEDED_ROWS + 1, 4 * MAX_NEEDED_ROWS])
def test_a_part_crosses_in_messages(count: int) -> None:
    rows = tuple(NeededTensor(0, 0, number, 1, number.to_bytes(32, "big")) for number in range(count))
    whole = Needs(bytes(32), 1 << 20, 1, rows)
    messages = [decode(one.encode()) for one in in_messages(whole)]
    assert len(messages) == max(1, -(-count // MAX_NEEDED_ROWS))
    assert all(isinstance(one, Needs) for one in messages)
    assert [one.last for one in messages if isinstance(one, Needs)] == [False] * (len(messages) - 1) + [True]
    assert tuple(row for one in messages if isinstance(one, Needs) for row in one.tensors) == rows
