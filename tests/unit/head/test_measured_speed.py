"""How fast a model was: what counts, and for how long."""

import pytest
from meshd.gateway.interface import AnswerTimings
from meshd.head.measures import MeasuredSpeed
from meshd.model.status import Speeds


def test_nothing_is_known_before_the_first_answer() -> None:
    assert MeasuredSpeed().speeds is None


def test_prompts_and_generated_tokens_count_by_themselves() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(100, 2.0, 3, 9.0))
    assert speed.speeds == Speeds(50.0, None), "three tokens measure a start"
    speed.answered(AnswerTimings(5, 9.0, 20, 4.0))
    assert speed.speeds == Speeds(50.0, 5.0), "a short prompt measures a start"


def test_longer_answers_count_more() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(0, 0.0, 10, 10.0))
    speed.answered(AnswerTimings(0, 0.0, 90, 9.0))
    assert speed.speeds == Speeds(None, round(100 / 19, 2))


def test_what_was_long_ago_fades() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(0, 0.0, 10_000, 10_000.0))
    for _ in range(60):
        speed.answered(AnswerTimings(0, 0.0, 1000, 100.0))
    assert speed.speeds is not None and (speed.speeds.generate_tok_s or 0) == pytest.approx(10.0, rel=0.05)


def test_an_answer_that_took_no_time_is_no_rate() -> None:
    speed = MeasuredSpeed()
    speed.answered(AnswerTimings(100, 0.0, 100, 0.0))
    assert speed.speeds is None
