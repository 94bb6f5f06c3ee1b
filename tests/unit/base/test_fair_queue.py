"""A queue that several fill."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.fair_queue import FairQueue


def test_items_come_in_order() -> None:
    queue: FairQueue[int] = FairQueue(8)
    for number in range(5):
        queue.put(number, number % 2)
    assert [queue.pop() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(queue) == 0


def test_who_floods_displaces_its_own_items() -> None:
    queue: FairQueue[str] = FairQueue(8)
    for who in ("anna", "bert", "carl"):
        queue.put(who, who)
    for _ in range(1000):
        queue.put("noise", "hostile")
    assert [queue.pop() for _ in range(8)] == ["anna", "bert", "carl", *["noise"] * 5]


@given(st.lists(st.integers(0, 5), max_size=80))
def test_who_has_no_more_than_its_part_loses_nothing(puts: list[int]) -> None:
    queue: FairQueue[int] = FairQueue(12)
    for who in puts:
        queue.put(who, who)
    left = [queue.pop() for _ in range(len(queue))]
    assert len(left) == min(len(puts), 12)
    for who in set(puts):
        assert left.count(who) >= min(puts.count(who), 2)  # 12 places, six that fill them


def test_who_has_many_names_is_counted_by_what_they_have_in_common() -> None:
    queue: FairQueue[str] = FairQueue(8)
    for who in ("anna", "bert", "carl"):
        queue.put(who, "ours", who)
    for number in range(1000):
        queue.put("noise", "theirs", f"key {number}")
    assert [queue.pop() for _ in range(8)] == ["anna", "bert", "carl", *["noise"] * 5]
    assert not queue._below
