"""What a round is taken for before it is measured."""

from dataclasses import replace

import pytest
from meshd.model.output import CPU_RATE
from meshd.model.status import Speeds
from meshd.role.head.draft_model import DraftModel
from meshd.role.head.round_estimate import round_estimate
from meshd.role.head.serving_split import serving_split

from tests.unit.role.head.test_split_choice import MODEL, OPTIONS, WORK, machines, offer

RTT = 0.05
FOUR = machines([offer(name, 16, RTT) for name in "abcd"], {})
PLAN = serving_split(MODEL, WORK, FOUR, replace(OPTIONS, split="always", devices=("none",))).plan


def test_what_is_predicted_is_used() -> None:
    found = round_estimate(PLAN, MODEL.weight_bytes, Speeds(200.0, 8.0), None)
    assert (found.round, found.check, found.draft) == (1 / 8, 1 / 200, 0.0)


def test_otherwise_weights_are_read_and_hidden_states_travel_from_each_to_the_next() -> None:
    draft = DraftModel("d", MODEL)
    for speeds in (None, Speeds(None, 8.0)):
        found = round_estimate(PLAN, MODEL.weight_bytes, speeds, draft)
        workers = {share.device.node for share in PLAN.shares if share.layers} - {"head"}
        travel = RTT * (len(workers) + 1) / 2
        assert found.round == pytest.approx(travel + MODEL.weight_bytes / CPU_RATE)
        assert 0 < found.check < found.round
        assert found.draft == pytest.approx(MODEL.weight_bytes / CPU_RATE)
