"""What a head serves with: the fastest split where all is measured, all workers by memory otherwise."""

from dataclasses import replace

import pytest
from meshd.model.output import DevicePath
from meshd.model.split_values import NotEnoughMemory
from meshd.model.status import Speeds
from meshd.role.head.measured_machines import NOT_MEASURED
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.serving_split import NOT_NEEDED, ServingSplit, serving_split
from meshd.role.head.split_plan import NodeOffer, PlainRpc, why_idle
from meshd.role.head.survey import COMPUTES
from meshd.wire.lease import WorkerOffer

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


@pytest.mark.parametrize(("measured", "lacks"), [({"a": 1.0, "b": 1.0}, "head CPU"), ({}, "head CPU")])
def test_what_was_not_measured_is_not_compared(measured: dict[str, float], lacks: str) -> None:
    there = machines([offer("a", 16), offer("b", 16)], measured)
    found = serving_split(MODEL, WORK, there, AUTO)
    assert set(layers_of(found)) >= {"a", "b"} and found.speeds is None
    assert found.plan.why.startswith(f"layers by memory, not by speed: `{lacks}`: {NOT_MEASURED}; layers in")


BUSY_FAR = {**dict.fromkeys("ab", 1.0), "head": 9.0}
"""`c` is at 150 ms, and computes for somebody: it was never measured."""


def with_busy(free: float = 16, own: float = 64.0) -> Machines:
    workers = [offer("a", free), offer("b", free), offer("c", 16, rtt=0.15)]
    return replace(machines(workers, BUSY_FAR, own=own), unmeasured={"c": COMPUTES})


def test_one_that_was_never_measured_leaves_the_choice_among_the_others() -> None:
    there = with_busy()
    found = serving_split(MODEL, WORK, there, AUTO)
    assert layers_of(found) == {"a": 30}
    assert found.speeds is not None and (found.speeds.generate_tok_s or 0) > 25, "as without it"
    assert f"; without `c`: {COMPUTES}; " in found.plan.why
    assert why_idle(found.plan, "c") == f"c CPU: {COMPUTES}"
    assert why_idle(found.plan, "b") == f"b CPU: {NOT_NEEDED}"
    assert found.machines is there, "who takes its place after a loss is decided with all of them"


@pytest.mark.parametrize(
    ("there", "least", "reason"),
    [
        (with_busy(free=0.3, own=0.3), 1, "does not fit"),
        (with_busy(), 3, "no split uses 3 workers"),
    ],
)
def test_where_it_is_needed_all_take_part_by_memory_and_the_reason_is_told(
    there: Machines, least: int, reason: str
) -> None:
    found = serving_split(MODEL, WORK, there, replace(AUTO, min_workers=least))
    assert "c" in layers_of(found) and found.speeds is None
    assert found.plan.why.startswith(f"layers by memory, not by speed: `c`: {COMPUTES}; and without that: ")
    assert reason in found.plan.why


def test_what_fits_nowhere_is_refused_with_all_numbers() -> None:
    there = with_busy(free=0.3, own=0.3)
    small = replace(there, offers=tuple(replace(one, offer=offer("x", 0.3).offer) for one in there.offers))
    with pytest.raises(NotEnoughMemory, match="c CPU"):
        serving_split(MODEL, WORK, small, AUTO)


def test_of_a_worker_with_two_devices_those_are_used_that_were_measured() -> None:
    both = WorkerOffer((device(16), device(16, "CUDA0")), False, "m of a", bytes(16))
    there = machines([NodeOffer("a", both, DevicePath(0.0005, 1e9))], {"head": 9.0, "a": 1.0})
    found = serving_split(MODEL, WORK, there, AUTO)
    assert layers_of(found) == {"a": 30} and found.speeds is not None
    assert why_idle(found.plan, "a") == f"a CUDA0: {NOT_MEASURED}"
    assert not found.offers[0].devices[1:], "it is not started either"


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
