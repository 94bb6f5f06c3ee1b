"""Whose turn it is."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.mux.config import Priority
from meshd.mux.send_queue import Schedule


def test_interactive_first_then_bulk_each_in_turn() -> None:
    schedule = Schedule()
    for stream_id in (1, 2, 3, 4):
        schedule.add(stream_id, Priority.BULK if stream_id % 2 else Priority.INTERACTIVE)
    assert [schedule.next() for _ in range(5)] == [2, 4, 1, 3, None]


def test_one_turn_in_sixteen_is_for_bulk() -> None:
    schedule = Schedule()
    schedule.add(1, Priority.BULK)
    turns = []
    for _ in range(64):
        schedule.add(2, Priority.INTERACTIVE)
        schedule.add(1, Priority.BULK)
        turns.append(schedule.next())
    assert turns.count(1) == 4
    assert turns[:16].index(1) == 15


def test_waiting_twice_is_waiting_once_and_leaving_is_leaving() -> None:
    schedule = Schedule()
    schedule.add(1, Priority.BULK)
    schedule.add(1, Priority.BULK)
    schedule.remove(9, Priority.BULK)
    assert len(schedule.waiting) == 1
    schedule.remove(1, Priority.BULK)
    assert schedule.next() is None


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), max_size=60))
def test_nobody_is_lost_or_doubled(steps: list[tuple[int, bool, bool]]) -> None:
    schedule = Schedule()
    waiting: set[int] = set()
    for stream_id, bulk, leave in steps:
        key = stream_id * 2 + bulk
        priority = Priority.BULK if bulk else Priority.INTERACTIVE
        if leave:
            schedule.remove(key, priority)
            waiting.discard(key)
        else:
            schedule.add(key, priority)
            waiting.add(key)
        assert len(schedule.waiting) == len(waiting)
    assert {schedule.next() for _ in range(len(waiting))} == waiting
    assert schedule.next() is None
