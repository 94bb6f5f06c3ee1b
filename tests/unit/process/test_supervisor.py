"""When a child is started again."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.process.supervisor import LOOP_FIRST, LOOP_MOST, QUICK_MOST, FailureRecord, was_stable


def failing(count: int, *, every: float = 0.0, works: bool = False) -> list[FailureRecord]:
    """The record after each of `count` failures; without `every` each start comes when it may."""
    record, now, found = FailureRecord(), 0.0, []
    for _ in range(count):
        record = record.add(now, was_stable=works)
        found.append(record)
        now += every or record.delay
    return found


def test_a_child_that_never_works_gets_quick_tries_then_minutes() -> None:
    delays = [record.delay for record in failing(12)]
    assert delays[:6] == [0.25, 0.5, 1.0, 2.0, 15.0, 30.0]
    assert delays[-1] == LOOP_MOST
    assert all(before <= after for before, after in pairwise(delays))


def test_the_loop_is_named_from_the_fifth() -> None:
    assert [record.looping for record in failing(6)] == [False] * 4 + [True] * 2


@pytest.mark.parametrize("every", [1.0, 3.0, 10.0, 60.0])
def test_a_child_that_works_is_back_in_two_seconds_however_often_it_is_killed(every: float) -> None:
    for record in failing(100, every=every, works=True):
        assert record.delay <= QUICK_MOST
        assert not record.looping


def test_one_good_run_ends_a_streak() -> None:
    record = failing(5)[-1].add(100.0, was_stable=True)
    assert not record.looping
    assert record.delay <= QUICK_MOST


def test_failures_fade_with_time() -> None:
    record = FailureRecord().add(0.0, was_stable=False)
    assert record.weight == 1.0
    assert record.add(30.0, was_stable=False).weight == 1.5


def test_failures_close_together_are_a_loop_though_one_run_worked() -> None:
    record = FailureRecord()
    for good in (False, False, False, False, True, False):
        record = record.add(0.0, was_stable=good)
    assert record.streak == 1
    assert record.looping
    assert record.delay == LOOP_FIRST


@given(st.lists(st.tuples(st.floats(-10, 1e9), st.booleans()), max_size=60))
def test_delays_are_bounded(failures: list[tuple[float, bool]]) -> None:
    record = FailureRecord()
    for now, good in failures:
        record = record.add(now, was_stable=good)
        assert 0 < record.delay <= LOOP_MOST
        assert record.weight <= len(failures)


@pytest.mark.parametrize(("ready_at", "expected"), [(None, False), (9.5, False), (9.0, True), (1.0, True)])
def test_worked(ready_at: float | None, expected: bool) -> None:
    assert was_stable(ready_at, 10.0) is expected
