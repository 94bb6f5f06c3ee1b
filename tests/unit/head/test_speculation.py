"""Test whether and how long drafts are, by what they have gained; and what they would make of a plan."""

import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.interface import AnswerTimings
from meshd.head.speculation import (
    ASSUMED_FREE,
    ASSUMED_MODEL,
    BETWEEN_LOADS_SECONDS,
    ENOUGH_OF_MODEL,
    ENOUGH_TOKENS,
    FORGOTTEN_SECONDS,
    MADE_GOOD_SECONDS,
    DraftForecast,
    Drafting,
    RoundEstimate,
    Speculation,
    forecast,
    never_a_model,
    round_estimate,
    uses_a_model,
)
from meshd.model.drafts import MOST_FREE, MOST_MODEL, Drafts, tokens_of_round
from meshd.model.output import CPU_RATE
from meshd.plan.choose_split import plan_model
from meshd.plan.machines import Machines
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.split import Plan
from meshd.plan.wishes import DraftModel, HeadOptions, MayDraft

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

RTT = 0.05
FOUR = machines([offer(name, 16, RTT) for name in "abcd"], {})
PLAN = plan_model(MODEL, WORK, FOUR, replace(OPTIONS, split="always", devices=("none",))).plan


def test_what_is_predicted_is_used() -> None:
    found = round_estimate(PLAN, MODEL.weight_bytes, lambda count: 0.125 + 0.005 * (count - 1), None)
    assert (found.round, found.draft) == (0.125, 0.0)
    assert found.check == pytest.approx(0.005)
    assert [found.checking(count) for count in (0, 1, 24)] == pytest.approx([0.0, 0.005, 0.12])


def test_each_length_has_its_own_time() -> None:
    """Four tokens take four times as long as one here, and 24 no longer than four."""
    found = round_estimate(PLAN, MODEL.weight_bytes, lambda count: 0.01 * min(count, 4), None)
    assert found.checking(3) == found.checking(23) == pytest.approx(0.03)
    assert found.check == pytest.approx(0.01), "the dearest of the lengths that a draft model may have"


def test_otherwise_weights_are_read_and_hidden_states_travel_from_each_to_the_next() -> None:
    draft = DraftModel("d", MODEL)
    found = round_estimate(PLAN, MODEL.weight_bytes, None, draft)
    workers = {share.device.node for share in PLAN.shares if share.layers} - {"head"}
    travel = RTT * (len(workers) + 1) / 2
    assert found.round == pytest.approx(travel + MODEL.weight_bytes / CPU_RATE)
    assert 0 < found.check < found.round
    assert found.draft == pytest.approx(MODEL.weight_bytes / CPU_RATE)


FAR = RoundEstimate(round=0.145, check=0.004, draft=0.010)
NEAR = RoundEstimate(round=0.009, check=0.002, draft=0.010)
FREE, BOTH = MayDraft(free=True), MayDraft(free=True, model=True)
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
    assert Speculation(FREE).begin(FAR, 0.0).model == 0
    assert Speculation(BOTH).begin(FAR, 0.0, most=2) == Drafts(2, 2)


def test_why_a_draft_model_is_not_used_is_said_with_the_times_that_decide() -> None:
    it = Speculation(BOTH)
    it.begin(FAR, 0.0)
    assert it.why_no_model == it.status().why_no_model == ""
    it.begin(NEAR, 0.0)
    assert it.why_no_model == it.status().why_no_model
    times = "drafting and checking a token: 24.5 ms, a round without drafts 9.0 ms, estimated"
    assert it.why_no_model == f"draft model not used: it would slow prose down ({times})"
    drafted = 2000 * it.begin(FAR, 0.0).model
    it.round_took(FAR.round + FAR.draft)
    it.answered(answer(rounds=2000, drafted=drafted, accepted=drafted // 50, token_s=FAR.token / 4), 1.0)
    it.begin(FAR, 2.0)
    assert it.why_no_model.startswith("draft model not used: it would gain less than 5 % (")
    without = Speculation(FREE)
    without.begin(NEAR, 0.0)
    assert without.why_no_model == "", "there is none"


def test_a_draft_model_that_llama_cpp_does_not_load_is_not_used_and_status_says_why() -> None:
    assert never_a_model(PLAN) == ""
    why = never_a_model(replace(PLAN, by_tensors=True))
    it = Speculation(BOTH)
    assert it.begin(NEAR, 0.0, never_model=why).model == 0
    assert it.drafts.free == Speculation(FREE).begin(NEAR, 0.0).free > 0
    assert it.status().why_no_model == f"draft model not used: {why}"
    assert it.would_begin(FAR, 1.0, most=MOST_FREE, never_model=why).drafts.model == 0
    assert it.begin(FAR, 2.0).model > 0, "the next split is by layers"
    without = Speculation(FREE)
    without.begin(NEAR, 0.0, never_model=why)
    assert without.why_no_model == ""


def test_a_length_that_loses_as_predicted_is_not_drafted() -> None:
    """As on a CPU that computes four tokens in four times the time of one, and 24 in hardly more."""
    dear = RoundEstimate(0.0076, 0.008, checks=tuple(0.0076 * min(1.2 * count, 30) for count in range(1, 25)))
    assert Speculation(FREE).begin(dear, 0.0) == Drafts()
    cheap = RoundEstimate(0.0076, 0.008, checks=tuple(0.0076 * min(1.2 * count, 4) for count in range(1, 25)))
    assert Speculation(FREE).begin(cheap, 0.0).free == MOST_FREE


def test_what_would_be_drafted_begins_nothing() -> None:
    it = Speculation(BOTH)
    it.begin(NEAR, 0.0)
    before = pickle.dumps(it)
    assert it.would_begin(FAR, 1.0, most=MOST_FREE).drafts == Speculation(BOTH).begin(FAR, 1.0)
    assert pickle.dumps(it) == before


def test_acceptance_is_told_once_enough_was_drafted() -> None:
    free = Speculation(FREE)
    length = free.begin(FAR, 0.0).free
    free.answered(answer(rounds=2000, drafted=50, accepted=25), 1.0)
    assert free.acceptances(2.0) == (None, None), "prose, of which next to nothing was drafted"
    free.answered(answer(rounds=100, drafted=100 * length, accepted=100 * length), 1.0)
    accepted, _ = free.acceptances(2.0)
    assert accepted is not None and 0.97 < accepted < 1
    assert free.acceptances(2.0 + FORGOTTEN_SECONDS) == (None, None)
    both = Speculation(BOTH)
    length = both.begin(FAR, 0.0).model
    both.answered(answer(rounds=1000, drafted=1000 * length, accepted=700), 1.0)
    repeated, drafted = both.acceptances(2.0)
    assert repeated is None and drafted is not None
    assert tokens_of_round(drafted, length) == pytest.approx(1.7, rel=0.01)


@pytest.mark.parametrize("may", [BOTH, FREE])
def test_the_gain_is_that_against_rounds_without_drafts(may: MayDraft) -> None:
    """The one that is timed has a draft model beside it, if there is one."""
    it = Speculation(may)
    it.begin(FAR, 0.0)
    assert it.status().gain is None
    it.round_took(0.1 + (FAR.draft if may.model else 0.0))
    it.answered(answer(rounds=100, drafted=400, accepted=300, round_s=0.1, token_s=0.025), 1.0)
    assert it.gain == pytest.approx(2.0)
    status = it.status()
    assert (status.drafted, status.accepted, status.gain) == (400, 300, 2.0)


def test_answers_that_draft_nothing_tell_what_a_round_takes() -> None:
    it = Speculation(FREE)
    it.begin(FAR, 0.0)
    it.answered(answer(rounds=5, round_s=0.1), 1.0)
    assert it.gain is None, "too short an answer"
    it.answered(answer(rounds=100, round_s=0.1), 1.0)
    assert it.gain == pytest.approx(1.0)
    it.answered(answer(rounds=50, drafted=200, accepted=150, round_s=0.1, token_s=0.01), 2.0)
    assert it.gain == pytest.approx(305 * 0.1 / 17.5)
    assert it.status().gain == 1.74


def test_drafts_that_lose_are_given_up_at_a_quiet_moment_and_for_the_next_loads() -> None:
    it = Speculation(BOTH)
    length = it.begin(FAR, 0.0).model
    it.round_took(0.145)
    drafted = 2000 * length
    losing = answer(rounds=2000, drafted=drafted, accepted=drafted // 20, token_s=0.1)
    it.loaded(MADE_GOOD_SECONDS)
    it.answered(losing, 1.0)
    assert it.better(BETWEEN_LOADS_SECONDS / 2) == "", "it has just been loaded, and that takes long"
    assert "cost more than they gain" in it.better(LATER)
    assert it.begin(FAR, LATER).model == 0
    assert it.begin(FAR, LATER + FORGOTTEN_SECONDS).model == length, "another day has other texts"


def test_a_length_that_is_clearly_better_is_worth_a_load() -> None:
    it = Speculation(BOTH)
    estimate = RoundEstimate(0.145, 0.02, 0.02)
    length = it.begin(estimate, 0.0).model
    assert 0 < length < 4
    it.round_took(0.145 + estimate.draft)
    cheap = answer(
        rounds=900,
        drafted=900 * length,
        accepted=880 * length,
        round_s=0.145 + estimate.draft / 5,
        token_s=estimate.token / 5,
    )
    it.answered(cheap, 1.0)
    assert "gain more" in it.better(LATER)
    assert it.begin(estimate, LATER).model == 11, "longer ones are not safe in another text"


def tried(length: int, *, dearer: float, rounds: int = 3) -> AnswerTimings:
    """With a draft model so many times as dear as in FAR, and a round of 145 ms without."""
    seconds = rounds * (0.145 + dearer * FAR.draft) + rounds * length * dearer * FAR.token
    return AnswerTimings(1, 0.2, 1 + rounds, seconds, rounds * length, 0)


@pytest.mark.parametrize(("dearer", "expected"), [(1.0, None), (2.5, 1), (5.0, 0)])
def test_a_draft_model_that_costs_more_than_estimated_is_loaded_with_shorter_drafts_or_not_at_all(
    dearer: float, expected: int | None
) -> None:
    it = Speculation(BOTH)
    length = it.begin(FAR, 0.0).model
    was_tried = it.is_tried
    assert length > 2 and not was_tried
    it.loaded(5.0)
    why = it.tried(0.145 + dearer * FAR.draft, tried(length, dearer=dearer))
    assert it.is_tried
    assert bool(why) is (expected is not None)
    if expected is None:
        assert it.gain is None, "nobody has asked yet"
        return
    assert "would cost more" in why and "round 145 ms" in why
    assert it.begin(FAR, 9.0).model == expected
    assert it.is_tried, "it is not timed again over the same split"
    assert it.begin(RoundEstimate(0.5, FAR.check, FAR.draft), 9.0).model > expected
    assert not it.is_tried, "over another one it is"


def test_a_model_that_takes_long_to_load_is_not_loaded_again_at_once() -> None:
    it = Speculation(BOTH)
    length = it.begin(FAR, 0.0).model
    it.loaded(MADE_GOOD_SECONDS)
    assert it.tried(0.145 + 5 * FAR.draft, tried(length, dearer=5.0)) == ""


def test_a_trial_of_which_nothing_is_told_changes_nothing() -> None:
    it = Speculation(BOTH)
    it.begin(FAR, 0.0)
    assert it.tried(None, tried(3, dearer=9.0)) == it.tried(0.2, None) == ""
    assert not it.is_tried


@pytest.mark.parametrize("load_seconds", [5.0, MADE_GOOD_SECONDS])
def test_a_draft_model_that_loses_is_given_up_soon_where_a_load_is_short(load_seconds: float) -> None:
    it = Speculation(BOTH)
    length = it.begin(FAR, 0.0).model
    it.loaded(load_seconds)
    it.round_took(0.145 + FAR.draft)
    rounds = ENOUGH_OF_MODEL
    it.answered(answer(rounds=rounds, drafted=rounds * length, accepted=rounds // 5, token_s=0.03), 1.0)
    assert ("cost more" in it.better(20.0)) is (load_seconds < MADE_GOOD_SECONDS)
    assert it.begin(FAR, 21.0).model < length


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
    rounds = ENOUGH_OF_MODEL // 2
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


def test_only_a_draft_model_is_what_a_split_by_tensors_lacks() -> None:
    plan, predictor = planned(0.1)
    speculations = Speculation(FREE), Speculation(BOTH)
    uses = [
        uses_a_model(one, MODEL, draft, 1.0, plan, predictor.rounds_of(plan))
        for one, draft in zip(speculations, (None, SMALL), strict=True)
    ]
    assert uses == [False, True]
    tensors = replace(plan, by_tensors=True)
    found = forecast(
        tensors, predictor, predictor.predict(plan), Drafting(speculations[1], SMALL), MODEL.weight_bytes, 1.0
    )
    assert found.free > 0 and found.model == 0
    assert not uses_a_model(speculations[1], MODEL, SMALL, 1.0, tensors, predictor.rounds_of(plan))


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
