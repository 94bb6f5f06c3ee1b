"""Whether and how long drafts are, by what they have gained."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.interface import AnswerTimings
from meshd.model.drafts import MOST_FREE, MOST_MODEL, Drafts, tokens_of_round
from meshd.role.head.speculation import (
    BETWEEN_LOADS_SECONDS,
    ENOUGH_TOKENS,
    FORGOTTEN_SECONDS,
    MayDraft,
    RoundEstimate,
    ShownAcceptance,
    Speculation,
)

FAR = RoundEstimate(round=0.145, check=0.004, draft=0.010)
NEAR = RoundEstimate(round=0.009, check=0.002, draft=0.010)
BOTH = MayDraft(free=True, model=True)
LATER = BETWEEN_LOADS_SECONDS + 1


def answer(
    *, rounds: int = 500, drafted: int = 0, accepted: int = 0, round_s: float = 0.145, token_s: float = 0.0
) -> AnswerTimings:
    """As llama-server would say of so many rounds, after the token of the prompt."""
    return AnswerTimings(
        10, 0.5, 1 + rounds + accepted, rounds * round_s + drafted * token_s, drafted, accepted
    )


def test_a_far_split_drafts_more_than_a_near_one() -> None:
    far, near = Speculation(BOTH).begin(FAR, 0.0), Speculation(BOTH).begin(NEAR, 0.0)
    assert far.free > near.free > 0
    assert far.model >= 3
    assert near.model == 0, "drafting a token takes as long as a round"


def test_nothing_is_drafted_that_is_not_allowed_or_has_no_room() -> None:
    assert Speculation(MayDraft(why="off")).begin(FAR, 0.0) == Drafts()
    assert Speculation(MayDraft(free=True)).begin(FAR, 0.0).model == 0
    assert Speculation(BOTH).begin(FAR, 0.0, most=2) == Drafts(2, 2)


def test_what_would_be_drafted_begins_nothing() -> None:
    it = Speculation(BOTH)
    it.begin(NEAR, 0.0)
    before = pickle.dumps(it)
    assert it.would_draft(FAR, 1.0, most=MOST_FREE) == Speculation(BOTH).begin(FAR, 1.0)
    assert pickle.dumps(it) == before


def test_acceptance_is_told_once_enough_was_drafted() -> None:
    free = Speculation(MayDraft(free=True))
    length = free.begin(FAR, 0.0).free
    free.answered(answer(rounds=2000, drafted=50, accepted=25), 1.0)
    assert free.shown(2.0) == ShownAcceptance(), "prose, of which next to nothing was drafted"
    free.answered(answer(rounds=100, drafted=100 * length, accepted=100 * length), 1.0)
    shown = free.shown(2.0).free
    assert shown is not None and 0.97 < shown < 1
    assert free.shown(2.0 + FORGOTTEN_SECONDS) == ShownAcceptance()
    both = Speculation(BOTH)
    length = both.begin(FAR, 0.0).model
    both.answered(answer(rounds=1000, drafted=1000 * length, accepted=700), 1.0)
    found = both.shown(2.0)
    assert found.free is None and found.model is not None
    assert tokens_of_round(found.model, length) == pytest.approx(1.7, rel=0.01)


def test_the_gain_is_that_against_rounds_without_drafts() -> None:
    it = Speculation(BOTH)
    it.begin(FAR, 0.0)
    assert it.status().gain is None
    it.round_took(0.1)
    it.answered(answer(rounds=100, drafted=400, accepted=300, round_s=0.1, token_s=0.025), 1.0)
    assert it.gain == pytest.approx(2.0)
    status = it.status()
    assert (status.drafted, status.accepted, status.gain) == (400, 300, 2.0)


def test_answers_that_draft_nothing_tell_what_a_round_takes() -> None:
    it = Speculation(MayDraft(free=True))
    it.begin(FAR, 0.0)
    it.answered(answer(rounds=5, round_s=0.1), 1.0)
    assert it.gain is None, "too short an answer"
    it.answered(answer(rounds=100, round_s=0.1), 1.0)
    assert it.gain == pytest.approx(1.0)
    it.answered(answer(rounds=50, drafted=200, accepted=150, round_s=0.1, token_s=0.01), 2.0)
    assert it.gain == pytest.approx(305 * 0.1 / 17.5)


def test_drafts_that_lose_are_given_up_at_a_quiet_moment_and_for_the_next_loads() -> None:
    it = Speculation(BOTH)
    length = it.begin(FAR, 0.0).model
    it.round_took(0.145)
    drafted = 2000 * length
    losing = answer(rounds=2000, drafted=drafted, accepted=drafted // 20, token_s=0.1)
    it.answered(losing, 1.0)
    assert it.better(BETWEEN_LOADS_SECONDS / 2) == "", "it has just been loaded"
    assert "cost more than they gain" in it.better(LATER)
    assert it.begin(FAR, LATER).model == 0
    assert it.begin(FAR, LATER + FORGOTTEN_SECONDS).model == length, "another day has other texts"


def test_a_length_that_is_clearly_better_is_worth_a_load() -> None:
    it = Speculation(BOTH)
    length = it.begin(RoundEstimate(0.145, 0.02, 0.02), 0.0).model
    assert 0 < length < 4
    it.round_took(0.145)
    it.answered(answer(rounds=900, drafted=900 * length, accepted=880 * length, token_s=0.004), 1.0)
    assert "gain more" in it.better(LATER)
    assert it.begin(RoundEstimate(0.145, 0.02, 0.02), LATER).model == MOST_MODEL


def test_drafts_come_back_when_the_round_has_grown() -> None:
    it = Speculation(BOTH)
    it.begin(NEAR, 0.0)
    assert it.drafts.model == 0
    it.answered(answer(rounds=2000, round_s=0.145), 1.0)
    assert "gain more" in it.better(LATER)
    assert it.begin(NEAR, LATER).model > 0, "the measured round outlives a load over the same split"
    assert it.begin(RoundEstimate(0.02, 0.002, 0.02), LATER).model == 0, "but not another split"


def test_few_answers_change_nothing() -> None:
    it = Speculation(BOTH)
    length = it.begin(FAR, 0.0).model
    it.round_took(0.145)
    rounds = ENOUGH_TOKENS // 2
    it.answered(answer(rounds=rounds, drafted=rounds * length, accepted=0, token_s=0.1), 1.0)
    assert it.better(LATER) == ""
    it.answered(AnswerTimings(10, 0.1, 1, 0.0), 1.0)
    it.answered(AnswerTimings(10, 0.1, 0, 0.0, 5, 5), 1.0)
    assert it.better(LATER) == ""


@given(
    st.floats(0.005, 0.5),
    st.floats(0.0, 0.2),
    st.floats(0.0, 1.0),
    st.integers(ENOUGH_TOKENS, 5 * ENOUGH_TOKENS),
)
def test_with_enough_data_no_draft_model_is_used_that_loses(
    round_s: float, token_s: float, share: float, rounds: int
) -> None:
    it = Speculation(BOTH)
    length = it.begin(RoundEstimate(round_s, 0.0, 1e-9), 0.0).model
    assert length
    it.round_took(round_s)
    drafted = rounds * length
    it.answered(
        answer(
            rounds=rounds, drafted=drafted, accepted=int(drafted * share), round_s=round_s, token_s=token_s
        ),
        1.0,
    )
    seen = it.gain
    assert seen is not None
    if it.begin(RoundEstimate(round_s, 0.0, 1e-9), 2.0).model == length:
        assert seen >= 1


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=50))
def test_whatever_is_said_memory_is_bounded_and_lengths_are_possible(
    said: list[tuple[int, int, int]],
) -> None:
    it = Speculation(BOTH)
    it.begin(FAR, 0.0)
    for number, (generated, drafted, accepted) in enumerate(said):
        it.answered(AnswerTimings(1, 1.0, generated, 1.0, drafted, accepted), float(number))
        it.better(LATER + number)
    assert len(pickle.dumps(it)) < 2000
    drafts = it.begin(FAR, LATER)
    assert 0 <= drafts.free <= MOST_FREE and 0 <= drafts.model <= MOST_MODEL
