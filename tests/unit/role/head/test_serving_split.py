"""What a head serves with: the fastest split where all is measured, all workers by memory otherwise."""

from dataclasses import replace

import pytest
from meshd.model.status import Speeds
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.serving_split import NOT_NEEDED, ServingSplit, serving_split
from meshd.role.head.split_plan import PlainRpc, why_idle

from tests.unit.role.head.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer

AUTO = replace(OPTIONS, split="auto")
TWO = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})


def layers_of(split: ServingSplit) -> dict[str, int]:
    return {share.device.node: share.layers for share in split.plan.shares if share.layers}


def test_the_fastest_split_is_used_and_the_others_hear_why_not() -> None:
    found = serving_split(MODEL, WORK, TWO, AUTO)
    assert layers_of(found) == {"a": 30} and [one.node for one in found.offers] == ["a"]
    assert why_idle(found.plan, "b") == f"b CPU: {NOT_NEEDED}"
    assert found.plan.why.startswith("not split: it fits on `a`")
    assert found.plan.short.startswith("not split: it fits on `a`") and ";" not in found.plan.short
    assert found.speeds is not None and (found.speeds.generate_tok_s or 0) > 20


def test_all_take_part_where_the_user_wants_that_and_it_is_predicted_all_the_same() -> None:
    found = serving_split(MODEL, WORK, TWO, replace(AUTO, split="always"))
    assert set(layers_of(found)) >= {"a", "b"}
    best = serving_split(MODEL, WORK, TWO, AUTO)
    assert found.speeds is not None and best.speeds is not None
    assert (found.speeds.generate_tok_s or 0) < (best.speeds.generate_tok_s or 0)


def test_so_many_workers_as_must_take_part() -> None:
    found = serving_split(MODEL, WORK, TWO, replace(AUTO, min_workers=2))
    assert set(layers_of(found)) >= {"a", "b"}


@pytest.mark.parametrize("measured", [{"head": 1.0, "a": 1.0}, {"a": 1.0, "b": 1.0}, {}])
def test_what_was_not_measured_is_not_compared(measured: dict[str, float]) -> None:
    there = machines([offer("a", 16), offer("b", 16)], measured)
    found = serving_split(MODEL, WORK, there, AUTO)
    assert set(layers_of(found)) >= {"a", "b"} and found.speeds is None


def test_what_the_user_says_of_the_layers_is_done() -> None:
    found = serving_split(MODEL, WORK, TWO, replace(AUTO, tensor_split=(5.0, 25.0)))
    assert layers_of(found) == {"a": 5, "b": 25} and found.speeds is not None


def test_plain_rpc_servers_take_part_as_before() -> None:
    there = Machines(TWO.offers, TWO.own, TWO.speeds, plain_rpc=(PlainRpc("10.0.0.9:1", (device(16),)),))
    found = serving_split(MODEL, WORK, there, replace(AUTO, rpc=("10.0.0.9:1",)))
    assert "10.0.0.9:1" in layers_of(found) and found.speeds is None
    assert isinstance(found.speeds, Speeds | None)


def test_a_head_that_can_get_no_layer_need_not_be_measured_for_them() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"a": 1.0, "b": 2.0})
    found = serving_split(MODEL, WORK, there, replace(AUTO, devices=("none",)))
    assert found.plan.short.startswith("not split: it fits on `a`")
