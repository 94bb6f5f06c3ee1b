"""Which sets of workers are looked at, and in which orders: the best are among them, and not too many."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations
from random import Random

import pytest
from meshd.model.output import DevicePath
from meshd.plan.candidates import (
    HEAD_END,
    ConsideredWorker,
    RoughSplits,
    RoundTrip,
    nearest_next,
    worker_orders,
)
from meshd.plan.plan_prediction import PlanPredictor

from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer


def places(count: int, seed: int) -> tuple[list[str], RoundTrip]:
    """Return nodes on a plane, with round trips as long as they are apart."""
    chance = Random(seed)
    names = [f"w{number:02}" for number in range(count)]
    at = {name: (chance.random(), chance.random()) for name in [HEAD_END, *names]}

    def round_trip(a: str, b: str) -> float:
        return float(((at[a][0] - at[b][0]) ** 2 + (at[a][1] - at[b][1]) ** 2) ** 0.5)

    return names, round_trip


def same(_node: str, _other: str) -> float:
    return 1.0


def length(order: Sequence[str], round_trip: RoundTrip) -> float:
    return sum(round_trip(a, b) for a, b in pairwise([HEAD_END, *order, HEAD_END]))


def orders(
    workers: Sequence[ConsideredWorker], round_trip: RoundTrip, most: int = 15
) -> list[tuple[str, ...]]:
    return list(worker_orders(workers, round_trip, most_devices=most))


def workers_of(names: Sequence[str], room: int = 3) -> list[ConsideredWorker]:
    return [ConsideredWorker(name, room, 1.0) for name in names]


@pytest.mark.parametrize("count", range(6))
def test_of_up_to_five_workers_all_sets_are_looked_at_in_all_orders(count: int) -> None:
    names, round_trip = places(count, 1)
    found = orders(workers_of(names), round_trip)
    assert len(set(found)) == len(found)
    assert set(found) == {order for size in range(count + 1) for order in permutations(names, size)}


def test_of_more_each_size_is_looked_at_once_and_never_more_devices_than_llama_cpp_takes() -> None:
    names, round_trip = places(20, 1)
    sizes = Counter(len(order) for order in orders(workers_of(names), round_trip))
    assert max(sizes) == 15 and all(sizes[size] == 1 for size in range(6, 16))
    two_devices = [ConsideredWorker(name, 2, 1.0, devices=2) for name in names]
    assert max(len(order) for order in orders(two_devices, same)) == 7
    first, *others = workers_of(names)
    unfit = [ConsideredWorker(first.node, 30, 0.1, devices=16), *others]
    assert max(len(order) for order in orders(unfit, same)) == 15, "another one takes its place"


@pytest.mark.parametrize("special", ["near", "fast", "large"])
def test_a_worker_that_is_better_than_the_others_is_looked_at_wherever_it_is_in_the_list(
    special: str,
) -> None:
    usual = [ConsideredWorker(f"w{number:03}", 10, 5.0) for number in range(250)]
    better = {
        "near": ConsideredWorker("near", 10, 5.0),
        "fast": ConsideredWorker("fast", 10, 0.1),
        "large": ConsideredWorker("large", 30, 5.0),
    }[special]

    def round_trip(a: str, b: str) -> float:
        return 0.01 if {a, b} == {HEAD_END, "near"} else 0.1

    assert (better.node,) in orders([*usual, better], round_trip)


def test_a_set_grows_by_the_worker_that_is_near_those_it_has() -> None:
    """Six at one site hold as much as six at another one as far from the head."""
    here, there = [f"a{number}" for number in range(6)], [f"b{number}" for number in range(6)]
    mixed = [name for pair in zip(here, there, strict=True) for name in pair]

    def round_trip(a: str, b: str) -> float:
        return 0.001 if a[:1] == b[:1] else 0.1

    [six] = [order for order in orders(workers_of(mixed), round_trip) if len(order) == 6]
    assert set(six) in ({*here}, {*there})


def test_a_worker_without_memory_for_a_layer_is_not_looked_at() -> None:
    found = orders([ConsideredWorker("a", 5, 1.0), ConsideredWorker("b", 0, 1.0)], same)
    assert found == [(), ("a",)]


def test_few_are_looked_at_and_soon_however_many_there_are() -> None:
    names, round_trip = places(64, 1)
    asked: Counter[str] = Counter()

    def counted(a: str, b: str) -> float:
        asked["round trips"] += 1
        return round_trip(a, b)

    assert len(orders(workers_of(names, 2), counted)) < 400
    assert asked["round trips"] < 20_000


@pytest.mark.parametrize("seed", [7, 13, 16, 18])
def test_from_each_to_the_nearest_is_far_shorter_than_by_name(seed: int) -> None:
    names, round_trip = places(20, seed)
    found = nearest_next(names, round_trip)
    assert sorted(found) == names
    assert length(found, round_trip) < 0.6 * length(names, round_trip)


def test_where_none_is_nearer_the_order_stays() -> None:
    assert nearest_next("dbca", same) == ("d", "b", "c", "a")


@pytest.mark.parametrize(("known", "expected"), [({}, "abc"), ({("a", "c"): 0.001, ("a", "b"): 0.02}, "acb")])
def test_the_longer_path_to_the_head_stands_for_one_between_workers(
    known: dict[tuple[str, str], float], expected: str
) -> None:
    paths = {ends: DevicePath(rtt, 1e9) for ends, rtt in known.items()}
    workers = [offer("c", 16, 0.08), offer("b", 16, 0.04), offer("a", 16, 0.02)]
    there = machines(workers, dict.fromkeys(["head", *"abc"], 1.0), paths=paths)
    rough = RoughSplits(MODEL, there, OPTIONS, PlanPredictor(MODEL, WORK, there, OPTIONS), 0)
    assert "".join(one.node for one in rough.by_memory.offers) == expected
