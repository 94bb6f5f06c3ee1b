"""Whatever workers say of their speed and paths, the model is served, or refused with a reason."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest
from meshd.base.errors import MeshdError
from meshd.base.fault_boundary import forget
from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import DevicePath
from meshd.plan.choose_split import advise, plan_model
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.reasons import ComparisonFailed
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions
from meshd.wire.capacity import MAX_NANOSECONDS, MAX_TIMED_TOKENS, TimedLayer
from meshd.wire.lease import OfferedDevice, WorkerOffer

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer, speed

AUTO = replace(OPTIONS, split="auto", min_workers=1)
_TIMES = (1, 2, 1000, 10**6, 10**9, MAX_NANOSECONDS)
_TOKENS = (1, 2, 3, 16, 128, 512, MAX_TIMED_TOKENS)
_BYTES = (0, 1, 1 << 20, GIB, 3 * GIB, 1 << 40, (1 << 63) - 1)
_PLANS = 120


@pytest.fixture(autouse=True)
def no_earlier_faults() -> Iterator[None]:
    yield
    forget()


class _Fails(DeviceSpeed):
    def seconds(self, kind: int, tokens: float) -> float:
        raise ZeroDivisionError(f"{kind} {tokens}")


def test_an_unexpected_failure_of_the_comparison_leads_to_the_split_by_memory() -> None:
    there = machines([offer("good", 16), offer("evil", 16)], {"head": 1.0, "good": 1.0})
    evil = replace(
        there, speeds={**there.speeds, ("evil", "CPU"): _Fails(TimedLayer(kind, 1, 10**6) for kind in (0, 1))}
    )
    found = plan_model(MODEL, WORK, evil, AUTO)
    assert {"good", "evil"} <= {one.device.node for one in found.plan.shares if one.layers}
    failed = found.plan.reasons[0]
    assert isinstance(failed, ComparisonFailed)
    assert failed.what.startswith("a comparison of splits: ZeroDivisionError: ")
    assert found.speeds is None and not found.machines.speeds, "nobody predicts with them later"
    always = plan_model(MODEL, WORK, evil, replace(AUTO, split="always"))
    assert isinstance(always.plan.reasons[0], ComparisonFailed)


@pytest.mark.parametrize("seed", range(4))
def test_hostile_numbers_are_compared_like_any_others(seed: int) -> None:
    """Times that are there twice, too, though no message has them."""
    chance, planned = Random(seed), 0
    for _ in range(_PLANS // 4):
        there = _machines(chance)
        least, is_largest = chance.choice([0, 1, 2]), chance.random() < 0.3
        options = replace(AUTO, min_workers=least, ctx_size=0 if is_largest else None)
        try:
            found = plan_model(MODEL, WORK, there, options)
        except MeshdError:
            continue
        planned += 1
        assert not any(isinstance(one, ComparisonFailed) for one in found.plan.reasons)
        _look(found.machines, options, found.plan)
    assert planned


@pytest.mark.parametrize("seed", range(4))
def test_hostile_numbers_do_not_keep_a_split_by_tensors_from_being_predicted(seed: int) -> None:
    chance, together = Random(seed), 0
    for _ in range(_PLANS // 4):
        there = _machines(chance)
        try:
            found = plan_model(MODEL, WORK, there, replace(AUTO, split="tensor"))
        except MeshdError:
            continue
        together += found.plan.by_tensors
        assert 0 < found.seconds < float("inf")
        assert all(share.layers for share in found.plan.taking)
    assert together


def _look(there: Machines, options: HeadOptions, plan: Plan) -> None:
    predictor = PlanPredictor(MODEL, WORK, there, options)
    for tokens in (1, 5, 512):
        assert 0 < predictor.round_seconds(plan, tokens) < float("inf")
    assert advise(MODEL, WORK, there, options, plan).gain <= 1


def _machines(chance: Random) -> Machines:
    nodes = [f"w{number}" for number in range(chance.randint(1, 5))]
    speeds = {("head", "CPU"): speed(1.0)}
    offers = []
    for node in nodes:
        devices = [_device(chance, number) for number in range(chance.choice([1, 1, 2, 16]))]
        speeds |= {(node, one.name): _speed(chance) for one in devices}
        machine = chance.choice(["m", "m of head", f"m of {node}", ""])
        given = WorkerOffer(tuple(devices), False, machine, bytes(16))
        offers.append(NodeOffer(node, given, chance.choice([None, _path(chance)])))
    paths = {(a, b): _path(chance) for a in nodes for b in nodes if a != b and chance.random() < 0.6}
    return Machines(tuple(offers), (device(chance.choice([0.5, 1.0, 64.0])),), speeds, paths)


def _device(chance: Random, number: int) -> OfferedDevice:
    free = chance.choice(_BYTES)
    total, card = max(free, chance.choice(_BYTES)), chance.choice(["", "one", "two"])
    return OfferedDevice(
        f"CUDA{number}" if number else "CPU", "gpu" if number else "cpu", "", free, total, card
    )


def _speed(chance: Random) -> DeviceSpeed:
    times = [
        TimedLayer(kind, tokens, chance.choice(_TIMES))
        for kind in (0, 1)
        for tokens in chance.choices(_TOKENS, k=chance.randint(1, 4))
    ]
    return DeviceSpeed(times, share=chance.choice([0.001, 0.5, 1.0]), cores=chance.choice(["", "x"]))


def _path(chance: Random) -> DevicePath:
    rate = chance.choice([None, 1.0, 1000.0, 1e9, float(1 << 50)])
    return DevicePath(chance.choice([0.0, 1e-6, 0.001, 60.0]), rate)
