"""What drafts make of a plan: by the round of its split, and by what answers have shown."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.interface import AnswerTimings
from meshd.head.speculation import (
    ASSUMED_FREE,
    ASSUMED_MODEL,
    DraftForecast,
    Drafting,
    Speculation,
    forecast,
    round_estimate,
)
from meshd.model.drafts import MOST_FREE, tokens_of_round
from meshd.plan.choice import plan_model
from meshd.plan.machines import Machines
from meshd.plan.prediction import PlanPredictor
from meshd.plan.split import Plan
from meshd.plan.wishes import DraftModel, HeadOptions, MayDraft

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

FREE, BOTH = MayDraft(free=True), MayDraft(free=True, model=True)
REMOTE = replace(OPTIONS, devices=("none",), speculate="auto")
SMALL = DraftModel("/d.gguf", replace(MODEL, layers=(1000,) * 30, input=1000, output=1000))


def fleet(rtt: float) -> Machines:
    return machines([offer(node, 16, rtt) for node in "ab"], {"head": 1.0, "a": 1.0, "b": 1.0})


def planned(rtt: float, options: HeadOptions = REMOTE) -> tuple[Plan, PlanPredictor]:
    """Over two workers."""
    there = fleet(rtt)
    split = replace(options, tensor_split=(15.0, 15.0))
    return plan_model(MODEL, WORK, there, split).plan, PlanPredictor(MODEL, WORK, there, split)


def foreseen(rtt: float, drafting: Drafting, options: HeadOptions = REMOTE) -> tuple[DraftForecast, float]:
    """And tokens a second without drafts."""
    plan, predictor = planned(rtt, options)
    outcome = predictor.predict(plan)
    found = forecast(plan, predictor, outcome, drafting, MODEL.weight_bytes, 1.0)
    return found, outcome.prediction.generate_tok_s


def test_far_away_repeated_text_gains_and_prose_is_as_without() -> None:
    far, far_rate = foreseen(0.1, Drafting(Speculation(FREE)))
    near, near_rate = foreseen(0.0005, Drafting(Speculation(FREE)))
    assert far.repetitive_tok_s / far_rate > near.repetitive_tok_s / near_rate > 1
    assert far.repetitive_tok_s > 2 * far_rate
    assert (far.prose_tok_s, near.prose_tok_s) == (far_rate, near_rate)
    assert far.free_acceptance == ASSUMED_FREE and not far.measured and not far.why
    assert far.free > 0 and far.model == 0


@given(st.floats(0.0001, 0.2))
def test_no_drafts_are_offered_with_which_text_is_predicted_to_be_slower(rtt: float) -> None:
    for drafting in (Drafting(Speculation(FREE)), Drafting(Speculation(BOTH), SMALL)):
        found, without = foreseen(rtt, drafting)
        assert found.prose_tok_s >= without * 0.999
        assert found.repetitive_tok_s >= without * 0.999
        assert bool(found.why_no_model) is (drafting.draft_model is not None and not found.model)


def test_the_rate_is_that_of_rounds_which_compute_all_drafted_tokens() -> None:
    found, _ = foreseen(0.1, Drafting(Speculation(FREE)))
    plan, predictor = planned(0.1)
    seconds = predictor.round_seconds(plan, 1 + found.free)
    assert found.repetitive_tok_s == pytest.approx(tokens_of_round(ASSUMED_FREE, found.free) / seconds)
    outcome = predictor.predict(plan)
    assert predictor.round_seconds(plan, 1) == pytest.approx(1 / outcome.prediction.generate_tok_s)


def test_the_drafts_are_those_that_a_load_would_begin_with() -> None:
    plan, predictor = planned(0.1)
    estimate = round_estimate(plan, MODEL.weight_bytes, predictor.rounds_of(plan), SMALL)
    drafts = Speculation(BOTH).begin(estimate, 1.0, most=plan.shape.most_drafted)
    found, _ = foreseen(0.1, Drafting(Speculation(BOTH), SMALL))
    assert (found.free, found.model) == (drafts.free, drafts.model) and drafts.model > 0


def test_a_draft_model_drafts_prose_as_well() -> None:
    found, without = foreseen(0.1, Drafting(Speculation(BOTH), SMALL))
    assert found.prose_tok_s > 1.05 * without
    assert found.model_acceptance == ASSUMED_MODEL
    slow = replace(SMALL, layers=replace(SMALL.layers, layers=(100_000_000,) * 30))
    found, without = foreseen(0.0005, Drafting(Speculation(BOTH), slow))
    assert found.model == 0 and found.prose_tok_s == without, "it takes longer than the model itself"


def test_nothing_is_drafted_where_that_is_not_allowed() -> None:
    found, without = foreseen(0.1, Drafting(Speculation(MayDraft(why="off: `--speculate off`"))))
    assert found.why == "off: `--speculate off`" and not found.measured
    assert found.repetitive_tok_s == found.prose_tok_s == without


@given(st.integers(0, 10))
def test_what_answers_have_shown_goes_before_what_is_assumed(accepted: int) -> None:
    speculation = Speculation(FREE)
    estimate = round_estimate(planned(0.1)[0], MODEL.weight_bytes, lambda count: 0.18 + 0.02 * count, None)
    length = speculation.begin(estimate, 0.0).free
    assert length >= 10
    timings = AnswerTimings(10, 0.5, 1 + 1000 * (1 + accepted), 300.0, 1000 * length, 1000 * accepted)
    speculation.answered(timings, 0.5)
    found, _ = foreseen(0.1, Drafting(speculation).snapshot)
    if found.free:
        assert found.measured
        assert tokens_of_round(found.free_acceptance, length) == pytest.approx(1 + accepted, rel=0.01)
    assert speculation.drafts.free == length <= MOST_FREE, "the head goes on as it is"
