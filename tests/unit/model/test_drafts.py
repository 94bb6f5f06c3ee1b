"""Test how many drafted tokens pay."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.drafts import (
    LEAST_POOR_GAIN,
    MOST_MODEL,
    POOR_ACCEPTANCE,
    Drafts,
    acceptance_of,
    best_length,
    best_safe_length,
    gain,
    tokens_of_round,
)

SECONDS = st.floats(1e-4, 10.0)
SHARE = st.floats(0.0, 1.0)
LENGTH = st.integers(1, MOST_MODEL)


def each(token: float) -> Callable[[int], float]:
    """Seconds for so many tokens, where each takes as long."""
    return lambda count: count * token


@pytest.mark.parametrize(
    ("round_ms", "length", "tokens_a_second"), [(17, 3, 92), (68, 7, 40), (94, 8, 32), (149, 9, 23)]
)
def test_the_best_length_grows_with_the_round(round_ms: float, length: int, tokens_a_second: float) -> None:
    """80 % accepted, 5 ms for a drafted token."""
    seconds = round_ms / 1000
    assert best_length(seconds, each(0.005), 0.8, MOST_MODEL) == length
    assert gain(seconds, 0.005, 0.8, length) / seconds == pytest.approx(tokens_a_second, rel=0.03)


@given(SECONDS, SECONDS, SHARE)
def test_no_length_is_chosen_that_loses(round_seconds: float, token: float, acceptance: float) -> None:
    length = best_length(round_seconds, each(token), acceptance, MOST_MODEL)
    best = gain(round_seconds, token, acceptance, length)
    assert best >= 1 - 1e-9
    others = (gain(round_seconds, token, acceptance, other) for other in range(MOST_MODEL + 1))
    assert best == max(others)


@pytest.mark.parametrize(
    ("round_ms", "base_ms", "token_ms", "length"),
    [(140, 10, 15, 3), (140, 20, 33, 2), (140, 40, 60, 0), (94, 4, 5, 4), (17, 4, 5, 0)],
)
def test_a_safe_length_is_shorter_where_a_draft_model_costs_more(
    round_ms: float, base_ms: float, token_ms: float, length: int
) -> None:
    """60 % accepted."""
    assert best_safe_length(round_ms, token_ms, 0.6, MOST_MODEL, base_ms) == length


@given(SECONDS, SECONDS, SHARE, st.floats(0.0, 10.0))
def test_a_safe_length_gains_and_text_of_which_little_is_accepted_loses_little(
    round_seconds: float, token: float, acceptance: float, base: float
) -> None:
    length = best_safe_length(round_seconds, token, acceptance, MOST_MODEL, base)
    assert gain(round_seconds, token, acceptance, length, base) >= 1
    assert gain(round_seconds, token, POOR_ACCEPTANCE, length, base) >= LEAST_POOR_GAIN
    most = best_length(round_seconds, each(token), acceptance, MOST_MODEL)
    assert gain(round_seconds, token, acceptance, length) <= gain(round_seconds, token, acceptance, most)


@given(SHARE, LENGTH)
def test_acceptance_is_found_from_what_was_accepted(acceptance: float, length: int) -> None:
    accepted = tokens_of_round(acceptance, length) - 1
    found = acceptance_of(accepted, length)
    assert tokens_of_round(found, length) - 1 == pytest.approx(accepted, abs=1e-6)


def test_nothing_is_drafted_where_nothing_is_known_or_drafts_cost_as_much_as_rounds() -> None:
    assert best_length(0.0, each(0.01), 0.8, 16) == 0
    assert best_length(0.01, each(0.01), 0.8, 16) == 0
    assert gain(0.0, 0.0, 0.5, 0) == 1.0


def test_drafts_say_what_they_are() -> None:
    assert Drafts().text == "none"
    assert Drafts(16, 4).longest == 16
    assert Drafts(16, 4).text == "up to 4 tokens by the draft model or up to 16 repeated ones"
