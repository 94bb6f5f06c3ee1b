"""What a way costs an answer: as much as the prediction says, so that orders are compared by the same."""

import pytest
from meshd.model.output import SAMPLED_BYTES, DevicePath
from meshd.model.prediction import HOP_SECONDS
from meshd.role.head.answer_ways import AnswerWays
from meshd.role.head.plan_prediction import ASSUMED_ANSWER
from meshd.role.head.worker_orders import HEAD_END

from tests.unit.role.head.test_split_choice import machines, offer

FAST, SLOW = DevicePath(0.01, 1e9), DevicePath(0.01, 1e6)
THERE = machines([offer("a", 1, 0.02), offer("b", 1, 0.04)], {}, paths={("a", "b"): FAST, ("b", "a"): SLOW})
WIDE = 1000
HOPS = (ASSUMED_ANSWER + 1) * HOP_SECONDS


def ways(*, pushed: bool = True, numbers: bool = False, tokens: int = 256) -> AnswerWays:
    return AnswerWays(THERE, WIDE, tokens, pushed=pushed, numbers=numbers)


def test_each_direction_has_its_own_rate_and_a_prompt_crosses_whole() -> None:
    state, prompt = 4 * WIDE, 2 * FAST.seconds(256 * 4 * WIDE)
    expected = HOPS + ASSUMED_ANSWER * (0.005 + FAST.seconds(state)) + 0.005 + prompt
    assert ways()("a", "b") == pytest.approx(expected)
    assert ways()("b", "a") > ways()("a", "b") + 3


def test_what_is_not_known_is_the_longer_way_to_the_head() -> None:
    unknown = AnswerWays(machines(THERE.offers, {}), WIDE, 256, pushed=True, numbers=False)
    assert unknown("a", "b") == unknown(HEAD_END, "b") > unknown(HEAD_END, "a")


def test_without_pushes_the_head_is_in_between() -> None:
    between = ways(pushed=False)("a", "b")
    assert between == pytest.approx(ways()(HEAD_END, "a") + ways()(HEAD_END, "b") - HOPS)
    assert between == ways(pushed=False)("b", "a")


def test_numbers_cross_to_the_first_and_candidates_come_back() -> None:
    path = DevicePath(0.02, 1e9)
    back = HOPS + (ASSUMED_ANSWER + 1) * (0.01 + path.seconds(SAMPLED_BYTES))
    assert ways()("a", HEAD_END) == pytest.approx(back)
    assert ways(numbers=True)(HEAD_END, "a") < back < ways()(HEAD_END, "a")
