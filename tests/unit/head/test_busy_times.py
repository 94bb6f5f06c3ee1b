"""Tokens of all streamed answers together, in the newest busy time."""

from meshd.gateway.interface import AnswerTimings
from meshd.head.measures import BUSY_SECONDS, BusySpan, BusyTimes


def test_tokens_of_all_answers_count_and_those_of_the_first_moment_came_before() -> None:
    it = BusyTimes()
    it.requested(3)
    assert it.span is None
    it.generated(2, 10.0)
    assert it.span is None, "there is no time yet in which they came"
    it.generated(1, 10.5)
    it.generated(3, 11.0)
    assert it.span == BusySpan(10.0, 11.0, 4, 0)


def test_what_came_before_a_time_without_requests_is_another_time() -> None:
    it = BusyTimes()
    for begin in (10.0, 50.0):
        it.requested(2)
        it.generated(1, begin)
        it.requested(1)
        it.generated(1, begin + 1)
        it.requested(0)
        assert it.span == BusySpan(begin, begin + 1, 1, 0), "it is remembered until the next one"


def test_the_newest_part_of_a_long_time_is_looked_at() -> None:
    it = BusyTimes()
    for second in range(100):
        it.generated(5, float(second))
    assert it.span == BusySpan(99 - BUSY_SECONDS, 99.0, 5 * int(BUSY_SECONDS), 0)


def test_prompts_and_drafts_pass_the_devices_too() -> None:
    it = BusyTimes()
    it.generated(1, 1.0)
    it.answered(AnswerTimings(100, 0.5, 21, 0.9, drafted=30, accepted=10), 2.0)
    it.answered(AnswerTimings(700, 0.5, 21, BUSY_SECONDS + 1), 2.5)
    it.generated(20, 3.0)
    assert it.span == BusySpan(1.0, 3.0, 20, 120), "the other prompt was computed long before"
