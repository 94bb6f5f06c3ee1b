"""What `meshd why` compares a change with: the speed that was measured, not the one that was predicted."""

import pytest
from meshd.daemon.why_view import measured_scale
from meshd.model.time_account import TimeAccount
from meshd.role.head.advice import SplitAdvice

ADVICE = SplitAdvice(
    change="drop `garage`", gain=0.2, why="", now_tok_s=25.0, then_tok_s=32.0, is_measured=True
)


def test_rates_begin_with_the_measured_one() -> None:
    token = TimeAccount(seconds=0.025, tokens=100, parts=(), unexplained=0.0)
    scale = measured_scale(token, ADVICE)
    assert ADVICE.now_tok_s * scale == pytest.approx(40.0)
    assert ADVICE.then_tok_s * scale == pytest.approx(51.2)


def test_before_a_measurement_they_are_as_predicted() -> None:
    assert measured_scale(None, ADVICE) == 1.0
    assert measured_scale(TimeAccount(seconds=0.0, tokens=0, parts=(), unexplained=0.0), ADVICE) == 1.0
