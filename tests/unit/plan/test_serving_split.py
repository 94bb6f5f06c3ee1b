"""What a head serves with: the fastest split where all is measured, all workers by memory otherwise."""

from dataclasses import replace

import pytest
from meshd.config.forms import HostPort
from meshd.head.survey import COMPUTES
from meshd.model.output import DevicePath
from meshd.model.status import Speeds
from meshd.plan.choice import SplitChoice, plan_model
from meshd.plan.machines import Machines, NodeOffer, PlainRpc
from meshd.plan.reasons import (
    ByMemory,
    InProportion,
    LeftOut,
    NotMeasured,
    NotNeeded,
    Reported,
    SplitComparison,
    Without,
    brief,
    in_words,
)
from meshd.plan.split import NotEnoughMemory
from meshd.wire.lease import WorkerOffer

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer

AUTO = replace(OPTIONS, split="auto")
TWO = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})


def layers_of(split: SplitChoice) -> dict[str, int]:
    return {share.device.node: share.layers for share in split.plan.shares if share.layers}


def is_alone(split: SplitChoice) -> bool:
    """Whether the first reason is that it is fastest on `a` alone."""
    first = split.plan.reasons[0]
    return isinstance(first, SplitComparison) and first.chosen.nodes == ("a",)


def test_the_fastest_split_is_used_and_the_others_hear_why_not() -> None:
    found = plan_model(MODEL, WORK, TWO, AUTO)
    assert layers_of(found) == {"a": 30} and [one.node for one in found.offers] == ["a"]
    assert LeftOut("b", "CPU", NotNeeded()) in found.plan.left_out
    assert is_alone(found) and brief(found.plan.reasons) == in_words(found.plan.reasons[:1])
    assert found.speeds is not None and (found.speeds.generate_tok_s or 0) > 20


def test_all_take_part_where_the_user_wants_that_and_it_is_predicted_all_the_same() -> None:
    found = plan_model(MODEL, WORK, TWO, replace(AUTO, split="always"))
    assert set(layers_of(found)) >= {"a", "b"}
    best = plan_model(MODEL, WORK, TWO, AUTO)
    assert found.speeds is not None and best.speeds is not None
    assert (found.speeds.generate_tok_s or 0) < (best.speeds.generate_tok_s or 0)


def test_so_many_workers_as_must_take_part() -> None:
    found = plan_model(MODEL, WORK, TWO, replace(AUTO, min_workers=2))
    assert set(layers_of(found)) >= {"a", "b"}


@pytest.mark.parametrize(("measured", "lacks"), [({"a": 1.0, "b": 1.0}, "head CPU"), ({}, "head CPU")])
def test_what_was_not_measured_is_not_compared(measured: dict[str, float], lacks: str) -> None:
    there = machines([offer("a", 16), offer("b", 16)], measured)
    found = plan_model(MODEL, WORK, there, AUTO)
    assert set(layers_of(found)) >= {"a", "b"} and found.speeds is None
    assert found.plan.reasons[:2] == (ByMemory(((lacks, NotMeasured()),)), InProportion())


BUSY_FAR = {**dict.fromkeys("ab", 1.0), "head": 9.0}
"""`c` is at 150 ms, and computes for somebody: it was never measured."""


def with_busy(free: float = 16, own: float = 64.0) -> Machines:
    workers = [offer("a", free), offer("b", free), offer("c", 16, rtt=0.15)]
    return replace(machines(workers, BUSY_FAR, own=own), unmeasured={"c": COMPUTES})


def test_one_that_was_never_measured_leaves_the_choice_among_the_others() -> None:
    there = with_busy()
    found = plan_model(MODEL, WORK, there, AUTO)
    assert layers_of(found) == {"a": 30}
    assert found.speeds is not None and (found.speeds.generate_tok_s or 0) > 25, "as without it"
    assert found.plan.reasons[1] == Without("c", Reported(COMPUTES))
    left_out = {one.node: one.why for one in found.plan.left_out}
    assert (left_out["c"], left_out["b"]) == (Reported(COMPUTES), NotNeeded())
    assert found.machines is there, "who takes its place after a loss is decided with all of them"


@pytest.mark.parametrize(
    ("there", "least", "reason"),
    [(with_busy(free=0.3, own=0.3), 1, "does not fit"), (with_busy(), 3, "no split uses 3 workers")],
)
def test_where_it_is_needed_all_take_part_by_memory_and_the_reason_is_told(
    there: Machines, least: int, reason: str
) -> None:
    found = plan_model(MODEL, WORK, there, replace(AUTO, min_workers=least))
    assert "c" in layers_of(found) and found.speeds is None
    first = found.plan.reasons[0]
    assert isinstance(first, ByMemory) and first.unmeasured == (("c", Reported(COMPUTES)),)
    assert reason in first.refused


def test_what_fits_nowhere_is_refused_with_all_numbers() -> None:
    there = with_busy(free=0.3, own=0.3)
    small = replace(there, offers=tuple(replace(one, offer=offer("x", 0.3).offer) for one in there.offers))
    with pytest.raises(NotEnoughMemory, match="c CPU"):
        plan_model(MODEL, WORK, small, AUTO)


def test_of_a_worker_with_two_devices_those_are_used_that_were_measured() -> None:
    both = WorkerOffer((device(16), device(16, "CUDA0")), False, "m of a", bytes(16))
    there = machines([NodeOffer("a", both, DevicePath(0.0005, 1e9))], {"head": 9.0, "a": 1.0})
    found = plan_model(MODEL, WORK, there, AUTO)
    assert layers_of(found) == {"a": 30} and found.speeds is not None
    assert [one for one in found.plan.left_out if one.node == "a"] == [LeftOut("a", "CUDA0", NotMeasured())]
    assert not found.offers[0].devices[1:], "it is not started either"


def test_what_the_user_says_of_the_layers_is_done() -> None:
    found = plan_model(MODEL, WORK, TWO, replace(AUTO, tensor_split=(5.0, 25.0)))
    assert layers_of(found) == {"a": 5, "b": 25} and found.speeds is not None


def test_plain_rpc_servers_take_part_as_before() -> None:
    there = Machines(TWO.offers, TWO.own, TWO.speeds, plain_rpc=(PlainRpc("10.0.0.9:1", (device(16),)),))
    found = plan_model(MODEL, WORK, there, replace(AUTO, rpc=(HostPort("10.0.0.9", 1),)))
    assert "10.0.0.9:1" in layers_of(found) and found.speeds is None
    assert isinstance(found.speeds, Speeds | None)


def test_a_head_that_can_get_no_layer_need_not_be_measured_for_them() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"a": 1.0, "b": 2.0})
    found = plan_model(MODEL, WORK, there, replace(AUTO, devices=("none",)))
    assert is_alone(found)
