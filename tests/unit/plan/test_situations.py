"""Test that what users get in thirty situations changes with a word only: `situations.py --write` says it."""

import json

import pytest

from tests.unit.plan.situations import PLACE, SITUATIONS, outcome

TOLERANCE = 0.03  # of a rate; layers and reasons are exact
RATES = ("generate_tok_s", "prompt_tok_s")
KNOWN = json.loads(PLACE.read_text(encoding="utf-8"))


def test_the_same_situations_are_known() -> None:
    assert KNOWN.keys() == SITUATIONS.keys() and len(KNOWN) == 30


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_gets_the_split_that_it_got(name: str) -> None:
    expected, found = dict(KNOWN[name]), dict(outcome(SITUATIONS[name]))
    for rate in expected.keys() & set(RATES):
        assert found.pop(rate) == pytest.approx(expected.pop(rate), rel=TOLERANCE)
    assert found == expected
