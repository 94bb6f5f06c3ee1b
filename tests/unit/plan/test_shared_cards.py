"""Workers on one machine take different cards by themselves, and no card twice."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from meshd.model.output import DevicePath
from meshd.plan.choice import SplitChoice, choose_split, plan_model
from meshd.plan.machines import Machines, NodeOffer, one_for_each_card
from meshd.plan.over_offers import remote_device
from meshd.plan.reasons import LeftOut, SameCard
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import SHARED_MEMORY, OfferedDevice, WorkerOffer

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, device, speed

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
    """Whether a device is left out because its card is another's as well."""
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
