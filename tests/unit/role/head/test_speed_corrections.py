"""Predictions are corrected by what answers took: within bounds, and forgotten with devices and paths."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.interface import AnswerTimings
from meshd.model.output import DevicePath
from meshd.model.part_factors import LEAST_FACTOR, MOST_FACTOR
from meshd.role.head.plan_prediction import Machines, PlanPredictor
from meshd.role.head.serving_split import ServingSplit, serving_split
from meshd.role.head.speed_corrections import SpeedCorrections, SpeedLearner
from meshd.role.head.split_choice import choose_split
from meshd.role.head.split_plan import HeadOptions

from tests.unit.role.head.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

BOTH = {"head": 9.0, "a": 1.0, "b": 2.0}
ALONE = replace(OPTIONS, devices=("none",), tensor_split=(30.0, 0.0))
SPLIT = replace(OPTIONS, devices=("none",), tensor_split=(15.0, 15.0))
OTHER = replace(OPTIONS, devices=("none",), tensor_split=(20.0, 10.0))


def there(known: SpeedCorrections, layer_ms: dict[str, float] = BOTH) -> Machines:
    return replace(machines([offer("a", 16), offer("b", 16)], layer_ms), corrections=known)


def predicted(
    known: SpeedCorrections, options: HeadOptions, layer_ms: dict[str, float] = BOTH
) -> ServingSplit:
    return serving_split(MODEL, WORK, there(known, layer_ms), options)


def rates(split: ServingSplit) -> tuple[float, float]:
    assert split.speeds is not None
    return split.speeds.generate_tok_s or 0.0, split.speeds.prompt_tok_s or 0.0


def answered(
    known: SpeedCorrections,
    options: HeadOptions,
    slower: float,
    *,
    prompt: int = 512,
    layer_ms: dict[str, float] = BOTH,
) -> None:
    """An answer that takes so many times as long as predicted without corrections."""
    plain = there(SpeedCorrections(None), layer_ms)
    plan = serving_split(MODEL, WORK, plain, options).plan
    predictor = PlanPredictor(MODEL, WORK, there(known, layer_ms), options)
    generate, per_prompt = rates(predicted(SpeedCorrections(None), options, layer_ms))
    timings = AnswerTimings(prompt, slower * prompt / per_prompt, 257, slower * 256 / generate)
    predictor.learn(plan, SpeedLearner(), timings)


def test_a_split_that_was_slower_is_predicted_to_be_slower_again(tmp_path: Path) -> None:
    known = SpeedCorrections(tmp_path / "corrections")
    before = rates(predicted(known, SPLIT))
    answered(known, SPLIT, 1.25)
    after = rates(predicted(SpeedCorrections(tmp_path / "corrections"), SPLIT))
    assert after[0] == pytest.approx(before[0] * 0.8, rel=0.03)
    assert after[1] == pytest.approx(before[1] * 0.8, rel=0.03)


def test_splits_over_the_same_devices_and_paths_are_corrected_as_well() -> None:
    """One answer tells nothing apart: all that took part in it is as much slower, and nothing else."""
    known = SpeedCorrections(None)
    local = replace(OPTIONS, devices=(), tensor_split=(0.0, 0.0, 30.0))
    before = {name: rates(predicted(known, one))[0] for name, one in (("other", OTHER), ("alone", ALONE))}
    answered(known, SPLIT, 1.25)
    assert rates(predicted(known, OTHER))[0] == pytest.approx(before["other"] * 0.8, rel=0.01)
    assert rates(predicted(known, ALONE))[0] == pytest.approx(before["alone"] * 0.8, rel=0.01)
    assert is_own(known, SPLIT) == {True} and is_own(known, OTHER) == {False}
    answered(known, local, 1.0)
    assert rates(predicted(known, SPLIT))[0] < rates(predicted(SpeedCorrections(None), SPLIT))[0]


def test_several_splits_tell_devices_apart() -> None:
    """`a` is as predicted, and `b` half as fast: so is what is predicted of a split that never ran."""
    known = SpeedCorrections(None)
    true = {**BOTH, "b": 4.0}
    splits = [replace(SPLIT, tensor_split=(float(count), 30.0 - count)) for count in (2, 8, 22, 28)]
    for one in splits:
        was, will = (rates(predicted(SpeedCorrections(None), one, there))[0] for there in (BOTH, true))
        answered(known, one, was / will)
    for count in (5, 15, 25):
        one = replace(SPLIT, tensor_split=(float(count), 30.0 - count))
        truth = rates(predicted(SpeedCorrections(None), one, true))
        assert rates(predicted(known, one))[0] == pytest.approx(truth[0], rel=0.05)


def test_machines_are_chosen_by_what_is_known_of_them() -> None:
    """`a` looks faster than `b`, until answers of both together show which of them is slow."""
    known, looks, true = SpeedCorrections(None), {**BOTH, "b": 1.2}, {**BOTH, "a": 1.9, "b": 1.2}
    free = replace(OPTIONS, devices=("none",))
    assert choose_split(MODEL, WORK, there(known, looks), free)[0].nodes == ("a",)
    for count in (6, 24):
        one = replace(SPLIT, tensor_split=(float(count), 30.0 - count))
        was, will = (rates(predicted(SpeedCorrections(None), one, there))[0] for there in (looks, true))
        answered(known, one, was / will, layer_ms=looks)
    assert choose_split(MODEL, WORK, there(known, looks), free)[0].nodes == ("b",)


def test_a_path_that_is_another_one_by_now_begins_anew() -> None:
    known, split = SpeedCorrections(None), replace(SPLIT, output="head")
    far = there(known)
    far = replace(far, offers=tuple(replace(one, path=DevicePath(0.05, 1e9)) for one in far.offers))
    answered(known, split, 1.5)
    near, now = (choose_split(MODEL, WORK, one, split)[0] for one in (there(known), far))
    assert near.correction is not None and near.correction.is_own
    assert now.correction is not None and not now.correction.is_own, "its devices are still known"
    plain = choose_split(MODEL, WORK, replace(far, corrections=SpeedCorrections(None)), split)[0]
    slower = 1 / now.prediction.generate_tok_s - 1 / plain.prediction.generate_tok_s
    devices = 1 / plain.prediction.generate_tok_s - plain.prediction.ways_s
    assert slower == pytest.approx(0.5 * devices, rel=0.02), "paths are as predicted"


def is_own(known: SpeedCorrections, options: HeadOptions) -> set[bool | None]:
    """Of all plans that the options allow, with the output where it was."""
    choices = choose_split(MODEL, WORK, there(known), replace(options, output="head"))
    return {one.correction.is_own if one.correction is not None else None for one in choices}


def test_a_plan_tells_its_parts_and_their_factors() -> None:
    known = SpeedCorrections(None)
    answered(known, SPLIT, 1.25)
    best = choose_split(MODEL, WORK, there(known), replace(OTHER, output="head"))[0]
    names = [part.name for part in best.parts]
    assert sorted(names) == ["a CPU", "a ↔ b", "b CPU", "head CPU", "head ↔ a", "head ↔ b", "rest"]
    token, prompt = sum(part.token_s for part in best.parts), sum(part.prompt_s for part in best.parts)
    assert 0.8 / token == pytest.approx(best.prediction.generate_tok_s, rel=0.01)
    assert prompt / 0.8 == pytest.approx(best.prediction.first_token_s, rel=0.01)
    assert all(part.generate == pytest.approx(0.8, rel=0.01) for part in best.parts)
    prompts = {part.name: part.prompt for part in best.parts}
    assert prompts["a CPU"] == pytest.approx(0.8, rel=0.01) and prompts["a ↔ b"] == 1, "too little to tell"


@pytest.mark.parametrize(("slower", "factor"), [(10.0, 0.5), (0.1, 2.0)])
def test_no_answer_moves_a_prediction_further_than_twice(slower: float, factor: float) -> None:
    known = SpeedCorrections(None)
    before = rates(predicted(known, SPLIT))
    answered(known, SPLIT, slower)
    assert rates(predicted(known, SPLIT))[0] == pytest.approx(before[0] * factor, rel=0.001)


def test_other_times_of_a_device_begin_anew() -> None:
    """Nothing learned with the old ones counts, for this split and for others like it."""
    known = SpeedCorrections(None)
    answered(known, SPLIT, 1.5)
    changed = {**BOTH, "b": 2.1}
    for options in (SPLIT, OTHER):
        assert choose_split(MODEL, WORK, there(known, changed), options)[0].correction is None
        assert rates(predicted(known, options, changed)) == rates(
            predicted(SpeedCorrections(None), options, changed)
        )
        assert choose_split(MODEL, WORK, there(known), options)[0].correction is not None, "as it was"


def test_a_device_that_a_split_does_not_use_may_be_measured_again() -> None:
    known = SpeedCorrections(None)
    answered(known, SPLIT, 1.5)
    with_another = {**BOTH, "c": 1.0}
    assert choose_split(MODEL, WORK, there(known, with_another), OTHER)[0].correction is not None


@given(st.lists(st.tuples(st.floats(0.6, 1.7), st.booleans()), min_size=1, max_size=6))
def test_what_was_learned_with_other_times_does_not_count(learned: list[tuple[float, bool]]) -> None:
    """Each of another split; `busy`: while a device had other times."""
    known = SpeedCorrections(None)
    for layers, (slower, busy) in enumerate(learned, start=1):
        one = replace(SPLIT, tensor_split=(float(layers), 30.0 - layers))
        answered(known, one, slower, layer_ms={**BOTH, "a": 3.0} if busy else BOTH)
    found = choose_split(MODEL, WORK, there(known), OTHER)[0].correction
    counted = [1 / slower for slower, busy in learned if not busy]
    if not counted:
        assert found is None
        return
    assert found is not None and not found.is_own
    for factor in (found.generate, found.prompt):
        assert LEAST_FACTOR <= factor <= MOST_FACTOR
        assert factor == pytest.approx(counted[0], rel=0.01) or len(counted) > 1


def test_a_file_of_an_earlier_version_is_as_none(tmp_path: Path) -> None:
    file = tmp_path / "corrections"
    answered(SpeedCorrections(file), SPLIT, 1.25)
    key, model, *_ = file.read_text().split()
    file.write_text(f"{key} {model} 0.8000 0.8000\n{key} {model} 0.8000 - 012345abcdef\n")
    known = SpeedCorrections(file)
    assert is_own(known, SPLIT) == is_own(known, OTHER) == {None}
    answered(known, SPLIT, 1.5)
    assert is_own(known, SPLIT) == {True} and len(file.read_text().splitlines()) == 1


def test_other_activations_are_another_model() -> None:
    known = SpeedCorrections(None)
    answered(known, SPLIT, 1.5)
    half = replace(SPLIT, activations="f16")
    assert choose_split(MODEL, WORK, there(known), half)[0].correction is None


def test_a_short_prompt_says_nothing_of_prompts() -> None:
    known = SpeedCorrections(None)
    before = rates(predicted(known, SPLIT))
    answered(known, SPLIT, 1.5, prompt=10)
    after = rates(predicted(known, SPLIT))
    assert after[0] < before[0] and after[1] == before[1]


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    file = tmp_path / "corrections"
    answered(SpeedCorrections(file), SPLIT, 1.5)
    text = file.read_text()
    assert choose_split(MODEL, WORK, there(SpeedCorrections(file)), SPLIT)[0].correction is not None
    for bad in (text.replace(" ", "  "), text[:70], text[:-3], text.replace("0.", "9."), "\0" * 100):
        file.write_text(bad)
        assert choose_split(MODEL, WORK, there(SpeedCorrections(file)), SPLIT)[0].correction is None


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0.001, 100), st.floats(0.001, 100)), max_size=20))
def test_a_factor_lies_between_those_of_its_answers(answers: list[tuple[int, float, float]]) -> None:
    learner = SpeedLearner()
    for tokens, expected, took in answers:
        learner.answered(tokens, expected, took, is_prompt=False)
    found, prompt = learner.factors
    assert prompt is None
    if found is not None:
        each = [expected / took for _, expected, took in answers]
        assert min(each) * 0.999 <= found <= max(each) * 1.001


def test_an_answer_that_tells_nothing_corrects_nothing() -> None:
    """Nor does it take the place of what others told."""
    known = SpeedCorrections(None)
    plan = predicted(known, SPLIT).plan
    short = AnswerTimings(0, 0.0, 2, 0.1)
    PlanPredictor(MODEL, WORK, there(known), SPLIT).learn(plan, SpeedLearner(), short)
    assert choose_split(MODEL, WORK, there(known), SPLIT)[0].correction is None
