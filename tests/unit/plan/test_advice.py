"""The one change that would gain most, as the planner predicts it."""

from dataclasses import replace

import pytest
from meshd.model.output import DevicePath
from meshd.plan.choice import SplitAdvice, advise, plan_model
from meshd.plan.machines import Machines
from meshd.plan.prediction import ASSUMED_ANSWER, ASSUMED_PROMPT
from meshd.plan.reasons import Drop, HalfFloats, LetHeadCompute, OneAtOnce, Reorder, RunOn
from meshd.plan.wishes import HeadOptions

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

REMOTE = replace(OPTIONS, devices=("none",))


def advice(there: Machines, options: HeadOptions) -> SplitAdvice:
    """For what runs with these options."""
    plan = plan_model(MODEL, WORK, there, options).plan
    return advise(MODEL, WORK, there, options, plan)


def test_a_worker_that_is_far_away_is_dropped() -> None:
    there = machines([offer("a", 16), offer("b", 16, rtt=0.2)], {"head": 99.0, "a": 1.0, "b": 1.0})
    found = advice(there, replace(REMOTE, tensor_split=(15.0, 15.0)))
    assert found.change == RunOn("a", is_head=False) and 0.5 < found.gain < 1
    assert found.then_tok_s > 2 * found.now.prediction.generate_tok_s and found.now.prediction.is_measured


def test_that_drafts_are_left_out_is_said_of_what_is_predicted() -> None:
    there = machines([offer("a", 16), offer("b", 16, rtt=0.2)], {"head": 99.0, "a": 1.0, "b": 1.0})
    plan = plan_model(MODEL, WORK, there, REMOTE).plan
    assert advise(MODEL, WORK, there, REMOTE, plan, drafts=True).basis.drafts
    assert not advise(MODEL, WORK, there, REMOTE, plan).basis.drafts


def test_of_three_the_slow_one_is_dropped() -> None:
    there = machines(
        [offer("a", 2.2), offer("b", 2.2), offer("c", 2.2, rtt=0.3)],
        {"head": 99.0, "a": 1.0, "b": 1.0, "c": 1.0},
    )
    found = advice(there, replace(REMOTE, tensor_split=(10.0, 10.0, 10.0)))
    assert isinstance(found.change, Drop) and found.change.nodes == ("c",) and found.gain > 0.5
    assert {node for node, _ in found.change.layers} == {"a", "b"}


def test_another_order_where_neighbours_are_far_apart() -> None:
    far, near = DevicePath(0.3, 1e9), DevicePath(0.0005, 1e9)
    paths = {
        (one, two): far if {one, two} == {"a", "b"} else near for one in "abc" for two in "abc" if one != two
    }
    there = machines(
        [offer(node, 1.6) for node in "abc"], {"head": 999.0, "a": 1.0, "b": 1.0, "c": 1.0}, paths=paths
    )
    found = advice(there, replace(REMOTE, tensor_split=(10.0, 10.0, 10.0)))
    assert isinstance(found.change, Reorder) and found.change.nodes[1] == "c"


def test_the_fastest_split_is_left_as_it_is() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})
    found = advice(there, OPTIONS_AUTO)
    assert found.change is None and found.gain == 0
    basis = found.basis
    assert basis.comparison is not None and basis.comparison.chosen.nodes == ("a",)
    assert basis.comparison.other is not None and basis.comparison.other.nodes == ("b", "a")
    assert (basis.prompt, basis.answer) == (ASSUMED_PROMPT, ASSUMED_ANSWER)
    assert found.now.prediction.generate_tok_s == found.then_tok_s


OPTIONS_AUTO = replace(REMOTE, split="auto")


def test_this_node_is_used_where_it_was_kept_out() -> None:
    there = machines([offer("a", 16, rtt=0.1)], {"head": 1.0, "a": 1.0})
    found = advice(there, REMOTE)
    assert found.change == LetHeadCompute("head") and found.gain > 0.5


def test_one_answer_at_a_time_where_their_caches_keep_the_model_from_the_near_machine() -> None:
    """Four caches do not fit on `a` beside all layers, so that the far `b` is used; one does."""
    there = machines([offer("a", 3.5), offer("b", 16, rtt=0.2)], {"head": 99.0, "a": 1.0, "b": 1.0})
    found = advice(there, replace(OPTIONS_AUTO, slots=4))
    assert found.change == OneAtOnce(RunOn("a", is_head=False))
    assert found.gain > 0.5 and found.then_tok_s > 2 * found.now.prediction.generate_tok_s
    assert advice(there, replace(OPTIONS_AUTO, slots=1)).change is None, "it runs so already"


def test_half_floats_where_the_path_is_slow() -> None:
    slow = replace(offer("a", 1.7), path=DevicePath(0.001, 1e5))
    other = replace(offer("b", 1.7), path=DevicePath(0.001, 1e5))
    there = machines([slow, other], {"head": 999.0, "a": 0.1, "b": 0.1})
    found = advice(there, replace(REMOTE, tensor_split=(15.0, 15.0)))
    assert found.change == HalfFloats() and found.gain > 0.2
    assert advice(there, replace(REMOTE, tensor_split=(15.0, 15.0), activations="f16")).change is None


def test_what_was_not_measured_is_said() -> None:
    there = machines([offer("a", 16)], {"head": 1.0})
    found = advice(there, REMOTE)
    assert not found.now.prediction.is_measured and found.basis.estimated


@pytest.mark.parametrize("split", [(15.0, 15.0), (1.0, 29.0), (29.0, 1.0)])
def test_no_gain_is_a_loss(split: tuple[float, ...]) -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})
    found = advice(there, replace(REMOTE, tensor_split=split))
    assert 0.03 <= found.gain < 1 and found.change is not None
