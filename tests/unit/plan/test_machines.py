"""Test what machines share, lend and give back, and layers that are given by node."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from meshd.base.errors import UserError
from meshd.model.layer_range import parse_layer_range
from meshd.model.output import DevicePath
from meshd.plan.choose_split import SplitChoice, choose_split, plan_model
from meshd.plan.machines import (
    Machines,
    NodeOffer,
    measured_machines,
    one_for_each_card,
    with_fixed_layers,
    with_given_back,
    with_memory_limits,
)
from meshd.plan.over_offers import remote_device
from meshd.plan.reasons import LeftOut, SameCard
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions, nodes_of
from meshd.wire.lease import SHARED_MEMORY, OfferedDevice, WorkerOffer

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, machines, offer, speed

TWO = machines([offer("a", 16), offer("b", 16)], {"head": 9.0, "a": 1.0, "b": 2.0})


def asked(*ranges: str, devices: tuple[str, ...] = ()) -> HeadOptions:
    return replace(OPTIONS, layers=tuple(map(parse_layer_range, ranges)), devices=devices)


def given_by(*ranges: str, there: Machines = TWO) -> SplitChoice:
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
    assert in_order(given_by(*ranges)) == expected


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
        given_by(*ranges)
    assert caught.value.hint


def test_gpus_of_the_head_have_the_last_layers() -> None:
    there = replace(TWO, own=(device(64), device(24, "CUDA0")))
    assert in_order(given_by("a=0-9", "head=10-29", there=there)) == [("a", 10), ("head", 20)]
    with pytest.raises(UserError, match="compute the last layers"):
        given_by("head=0-9", "a=10-29", there=there)


def test_a_head_that_shall_not_compute_gets_no_layers() -> None:
    options = asked("head=0-9", "a=10-29", devices=("none",))
    with pytest.raises(UserError, match="gives layers to this node"):
        with_fixed_layers(TWO, options, MODEL.count)


def test_devices_of_one_node_share_its_layers_by_memory() -> None:
    given = WorkerOffer((device(24, "CUDA0"), device(8, "CUDA1")), False, "m of a", bytes(16))
    there = replace(TWO, offers=(NodeOffer("a", given), TWO.offers[1]))
    found = given_by("a=0-15", "b=16-29", there=there)
    assert in_order(found) == [("a", 12), ("a", 4), ("b", 14)]


def test_without_ranges_nothing_is_changed() -> None:
    assert with_fixed_layers(TWO, OPTIONS, MODEL.count) == (TWO, OPTIONS)
    assert not asked("a=0-29").picks_by_speed
    assert nodes_of(asked("head=0-9", "a=10-29").layers, "head") == ("a",)


def half_taken() -> Machines:
    """Return machines with 8 of 16 GiB free, on each."""
    there = machines([offer("a", 16), offer("b", 16)], {})
    halves = tuple(
        replace(
            one,
            offer=replace(
                one.offer, devices=tuple(replace(d, free_bytes=8 * GIB) for d in one.offer.devices)
            ),
        )
        for one in there.offers
    )
    return replace(there, offers=halves, own=(device(64), replace(device(24, "CUDA0"), free_bytes=4 * GIB)))


def free(there: Machines) -> dict[tuple[str, str], int]:
    found = {(one.node, d.name): d.free_bytes // GIB for one in there.offers for d in one.offer.devices}
    return found | {("head", d.name): d.free_bytes // GIB for d in there.own}


def test_what_its_leases_hold_is_free_and_no_more_than_there_is() -> None:
    held = {("a", "CPU"): 6 * GIB, ("b", "CPU"): 60 * GIB, ("head", "CUDA0"): 10 * GIB}
    assert free(with_given_back(half_taken(), held, "head")) == {
        ("a", "CPU"): 14,
        ("b", "CPU"): 16,
        ("head", "CPU"): 64,
        ("head", "CUDA0"): 14,
    }


def test_without_a_model_nothing_is_changed() -> None:
    there = half_taken()
    assert with_given_back(there, {}, "head") is there


def test_no_device_has_more_than_its_limit() -> None:
    there = half_taken()
    before = free(there)
    assert before["a", "CPU"] == 8 and before["head", "CUDA0"] == 4
    limited = free(with_memory_limits(there, {"a": 2 * GIB, "": 6 * GIB}, "head"))
    assert limited == {("a", "CPU"): 2, ("b", "CPU"): 6, ("head", "CPU"): 6, ("head", "CUDA0"): 4}
    alone = free(with_memory_limits(there, {"head": GIB}, "head"))
    assert alone == {**before, ("head", "CPU"): 1, ("head", "CUDA0"): 1}


def test_without_limits_nothing_is_changed_and_a_limit_of_nobody_is_an_error() -> None:
    there = half_taken()
    assert with_memory_limits(there, {}, "head") is there
    with pytest.raises(UserError, match="`--memory c=…` names a node that cannot take part") as refused:
        with_memory_limits(there, {"c": 1}, "head")
    assert refused.value.hint == "there are `head`, `a`, `b`"


HOST = "m of host"
AUTO = replace(OPTIONS, split="auto", min_workers=1)
ALWAYS = replace(AUTO, split="always")


def card(name: str, of: str, free: float = 8) -> OfferedDevice:
    return OfferedDevice(name, "gpu", "", int(free * GIB), int(free * GIB), of)


def lends(node: str, *devices: OfferedDevice, machine: str = HOST) -> NodeOffer:
    return NodeOffer(node, WorkerOffer(devices, False, machine, bytes(16)), DevicePath(0.00005, 1e9))


def there(offers: Sequence[NodeOffer], own: Sequence[OfferedDevice] = ()) -> Machines:
    speeds = {(one.node, mine.name): speed(0.2) for one in offers for mine in one.offer.devices}
    speeds |= {("head", mine.name): speed(0.2) for mine in own} | {("head", "CPU"): speed(9.0)}
    return Machines(tuple(offers), (device(8), *own), speeds)


def split(
    offers: Sequence[NodeOffer], options: HeadOptions, own: Sequence[OfferedDevice] = ()
) -> SplitChoice:
    return plan_model(MODEL, WORK, there(offers, own), options)


def used(plan: Plan) -> list[str]:
    return [share.device.label for share in plan.shares if share.layers]


def shares_a_card(plan: Plan) -> bool:
    """Return True if a device is left out because its card is another's as well."""
    return any(isinstance(one.why, SameCard) for one in plan.left_out)


ONE = [lends("a", card("CUDA0", "one")), lends("b", card("CUDA0", "one"))]
BOTH = [lends(node, card("CUDA0", "one"), card("CUDA1", "two")) for node in "ab"]


@pytest.mark.parametrize("options", [AUTO, ALWAYS])
def test_a_card_that_two_lend_is_used_by_one_and_the_other_hears_why(options: HeadOptions) -> None:
    found = split(ONE, options)
    assert used(found.plan) == ["a CUDA0"] and [one.node for one in found.offers] == ["a"]
    assert found.plan.left_out[-1] == LeftOut("b", "CUDA0", SameCard("a"))


@pytest.mark.parametrize("options", [replace(AUTO, min_workers=2), ALWAYS])
def test_of_two_cards_that_both_lend_each_takes_one(options: HeadOptions) -> None:
    found = split(BOTH, options)
    assert set(used(found.plan)) == {"a CUDA0", "b CUDA1"}
    assert LeftOut("a", "CUDA1", SameCard("b")) in found.plan.reasons
    assert [[one.name for one in item.devices] for item in found.offers] == [["CUDA0"], ["CUDA1"]]


def test_one_worker_alone_has_both() -> None:
    """A model that needs both is faster without a way between two processes."""
    offers = [lends(node, card("CUDA0", "one", 3), card("CUDA1", "two", 3)) for node in "ab"]
    assert used(split(offers, AUTO).plan) == ["a CUDA0", "a CUDA1"]


def test_no_choice_has_a_card_twice() -> None:
    offers = [*BOTH, lends("c", card("Vulkan0", "two"), card("Vulkan1", "three"))]
    cards = {(one.node, mine.name): mine.card for one in offers for mine in one.offer.devices}
    choices = choose_split(MODEL, WORK, there(offers), AUTO)
    assert any(len(one.plan.nodes) > 1 for one in choices)
    for one in choices:
        held = [
            cards[s.device.node, s.device.name] for s in one.plan.shares if s.layers and not s.device.is_head
        ]
        assert len(held) == len(set(held))


@pytest.mark.parametrize("options", [AUTO, ALWAYS])
def test_a_card_of_this_node_is_its_own(options: HeadOptions) -> None:
    options = replace(options, machine=HOST)
    found = split([*ONE, lends("c", card("CUDA0", "two"))], options, [card("CUDA0", "one")])
    assert not {"a CUDA0", "b CUDA0"} & set(used(found.plan)) and "c CUDA0" in used(found.plan)
    without = split(ONE, replace(options, devices=("none",)), [card("CUDA0", "one")])
    assert used(without.plan) == ["a CUDA0"]


@pytest.mark.parametrize("options", [AUTO, ALWAYS])
def test_two_take_part_on_one_card_where_their_user_wants_two(options: HeadOptions) -> None:
    found = split(ONE, replace(options, min_workers=2))
    assert set(used(found.plan)) == {"a CUDA0", "b CUDA0"}
    fixed = split(ONE, replace(options, tensor_split=(10.0, 20.0)))
    assert used(fixed.plan) == ["a CUDA0", "b CUDA0"]


def test_who_has_clearly_more_of_it_gets_it() -> None:
    """One that names another's card and says that next to nothing is free there takes nothing from it."""
    for free in (0.5, 6.0):
        offers = [lends("a", card("CUDA0", "one", free)), lends("b", card("CUDA0", "one"))]
        assert used(split(offers, ALWAYS).plan) == ["b CUDA0"]
    nearly = [lends("a", card("CUDA0", "one", 7.5)), lends("b", card("CUDA0", "one"))]
    assert used(split(nearly, ALWAYS).plan) == ["a CUDA0"], "what two see is rarely the same"


@pytest.mark.parametrize("options", [AUTO, ALWAYS])
def test_a_card_of_another_machine_is_another_card_whatever_a_node_calls_it(options: HeadOptions) -> None:
    """One that names another's card with memory without end takes nothing from it, by that name alone."""
    named = replace(card("CUDA0", "one"), free_bytes=1 << 62, total_bytes=1 << 62)
    offers = [lends("a", card("CUDA0", "one")), lends("liar", named, machine="m of liar")]
    plan = split(offers, options).plan
    assert not shares_a_card(plan), plan.left_out
    pools = {remote_device(one.node, one.devices[0], one.offer.machine, None).pool for one in offers}
    assert len(pools) == 2, "each has memory of its own"
    own = split([lends("c", card("CUDA0", "one"))], options, [card("CUDA0", "one")])
    assert not shares_a_card(own.plan), "this machine is not that one"


def test_nobody_has_more_of_a_card_free_than_there_is_of_it() -> None:
    odd = replace(card("CUDA0", "one", 8), free_bytes=1 << 62)
    offers = [lends("a", card("CUDA0", "one", 7.5)), lends("b", odd)]
    a, b = one_for_each_card(offers, there(offers), ALWAYS, least=0)
    assert [one.name for one in a.devices] == ["CUDA0"] and not b.devices


@pytest.mark.parametrize("of", ["", SHARED_MEMORY])
def test_what_is_no_card_or_not_known_is_shared(of: str) -> None:
    offers = [lends(node, card("CUDA0", of)) for node in "ab"]
    assert one_for_each_card(offers, there(offers), ALWAYS, least=0) == tuple(offers)


def test_a_card_on_which_two_compute_counts_once_in_a_prompt() -> None:
    options = replace(ALWAYS, tensor_split=(15.0, 15.0), llama_args=("-ub", "128"))
    apart = [lends("a", card("CUDA0", "one")), lends("b", card("CUDA0", "two"))]
    shared, own = split(ONE, options).speeds, split(apart, options).speeds
    assert shared is not None and own is not None
    assert shared.generate_tok_s == own.generate_tok_s
    assert (shared.prompt_tok_s or 0) < 0.7 * (own.prompt_tok_s or 0)


def cards(layer_ms: Mapping[str, float], kinds: Mapping[str, str]) -> Machines:
    """Return workers with a card each, of these kinds."""
    lent = {node: OfferedDevice("CUDA0", "gpu", kind, 80 * GIB, 80 * GIB) for node, kind in kinds.items()}
    offers = [NodeOffer(node, WorkerOffer((card,), False, node, bytes(16))) for node, card in lent.items()]
    speeds = {(node, "CUDA0"): speed(ms) for node, ms in layer_ms.items()}
    return Machines(tuple(offers), (), speeds)


def test_cards_of_one_kind_are_as_fast_where_trials_hardly_differ() -> None:
    kinds = {"a": "H100", "b": "H100", "c": "H100", "d": "T4"}
    there = cards({"a": 1.0, "b": 1.1, "c": 1.3, "d": 1.05}, kinds)
    found = measured_machines(WORK, there, replace(OPTIONS, devices=("none",))).machines.speeds
    took = {node: found[node, "CUDA0"].seconds(0, 1) for node in kinds}
    assert took["a"] == took["b"] == pytest.approx(0.001)
    assert took["c"] == pytest.approx(0.0013), "it is slower, not unlucky"
    assert took["d"] == pytest.approx(0.00105), "another kind of card"


def test_processors_keep_their_own_times() -> None:
    there = machines([offer("a", 16), offer("b", 16)], {"head": 1.1, "a": 1.0, "b": 1.05})
    found = measured_machines(WORK, there, OPTIONS).machines.speeds
    assert {node: found[node, "CPU"].seconds(0, 1) for node, _ in found} == {
        "head": pytest.approx(0.0011),
        "a": pytest.approx(0.001),
        "b": pytest.approx(0.00105),
    }
