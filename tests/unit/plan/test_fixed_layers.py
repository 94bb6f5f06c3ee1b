"""`--layers`: fixed ranges are respected, and what cannot be is an error."""

from dataclasses import replace

import pytest
from meshd.base.errors import UserError
from meshd.model.layer_range import parse_layer_range
from meshd.plan.choice import SplitChoice, plan_model
from meshd.plan.machines import Machines, NodeOffer, with_fixed_layers
from meshd.plan.wishes import HeadOptions, nodes_of
from meshd.wire.lease import WorkerOffer

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer

TWO = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})


def asked(*ranges: str, devices: tuple[str, ...] = ()) -> HeadOptions:
    return replace(OPTIONS, layers=tuple(map(parse_layer_range, ranges)), devices=devices)


def split(*ranges: str, there: Machines = TWO) -> SplitChoice:
    return plan_model(MODEL, WORK, there, asked(*ranges))


def in_order(found: SplitChoice) -> list[tuple[str, int]]:
    return [(share.device.node, share.layers) for share in found.plan.shares if share.layers]


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        (("a=0-9", "b=10-29"), [("a", 10), ("b", 20)]),
        (("a=10-29", "b=0-9"), [("b", 10), ("a", 20)]),
        (("b=10-29", "head=0-9"), [("head", 10), ("b", 20)]),
        (("a=25-29", "head=0-3", "b=4-24"), [("head", 4), ("b", 21), ("a", 5)]),
        (("a=0-29",), [("a", 30)]),
    ],
)
def test_each_node_holds_what_it_is_given(ranges: tuple[str, ...], expected: list[tuple[str, int]]) -> None:
    assert in_order(split(*ranges)) == expected


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        (("a=0-9", "b=9-29"), "overlaps"),
        (("a=0-9", "b=11-29"), "no node holds layers 10 to 10"),
        (("a=1-9", "b=10-29"), "no node holds layers 0 to 0"),
        (("a=0-9", "b=10-28"), "no node holds layers 29 to 29"),
        (("a=0-9", "b=10-30"), "that the model does not have"),
        (("a=0-9", "c=10-29"), "names a node that cannot take part"),
        (("a=0-9", "a=10-29"), "twice"),
        (("a=0-9", "head=10-29"), "computes the first layers"),
    ],
)
def test_what_cannot_be_is_an_error(ranges: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        split(*ranges)
    assert caught.value.hint


def test_gpus_of_the_head_have_the_last_layers() -> None:
    there = replace(TWO, own=(device(64), device(24, "CUDA0")))
    assert in_order(split("a=0-9", "head=10-29", there=there)) == [("a", 10), ("head", 20)]
    with pytest.raises(UserError, match="compute the last layers"):
        split("head=0-9", "a=10-29", there=there)


def test_a_head_that_shall_not_compute_gets_no_layers() -> None:
    options = asked("head=0-9", "a=10-29", devices=("none",))
    with pytest.raises(UserError, match="gives layers to this node"):
        with_fixed_layers(TWO, options, MODEL.count)


def test_devices_of_one_node_share_its_layers_by_memory() -> None:
    given = WorkerOffer((device(24, "CUDA0"), device(8, "CUDA1")), False, "m of a", bytes(16))
    there = replace(TWO, offers=(NodeOffer("a", given), TWO.offers[1]))
    found = split("a=0-15", "b=16-29", there=there)
    assert in_order(found) == [("a", 12), ("a", 4), ("b", 14)]


def test_without_ranges_nothing_is_changed() -> None:
    assert with_fixed_layers(TWO, OPTIONS, MODEL.count) == (TWO, OPTIONS)
    assert not asked("a=0-29").picks_by_speed
    assert nodes_of(asked("head=0-9", "a=10-29").layers, "head") == ("a",)
