"""What a round is taken for before it is measured."""

from dataclasses import replace

import pytest
from meshd.head.speculation import round_estimate
from meshd.model.output import CPU_RATE
from meshd.plan.choice import plan_model
from meshd.plan.wishes import DraftModel

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
