"""A plan counts the memory of this head's own model as free."""

from dataclasses import replace

from meshd.plan.machines import Machines, with_given_back

from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import device, machines, offer


def half_taken() -> Machines:
    """Of 16 GiB 8 are free, on each."""
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
