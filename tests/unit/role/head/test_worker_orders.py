"""Which sets of workers are looked at, and in which orders: the best are among them, and not too many."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

import pytest
from meshd.role.head.worker_orders import HEAD_END, ConsideredWorker, Order, Ways, WorkerOrders, short_way


def places(count: int, seed: int) -> tuple[list[ConsideredWorker], Ways]:
    """Workers on a plane, with ways as long as they are apart."""
    chance = Random(seed)
    names = [f"w{number:02}" for number in range(count)]
    at = {name: (chance.random(), chance.random()) for name in [HEAD_END, *names]}

    def ways(a: str, b: str) -> float:
        return float(((at[a][0] - at[b][0]) ** 2 + (at[a][1] - at[b][1]) ** 2) ** 0.5)

    return [ConsideredWorker(name, 5, 1.0) for name in names], ways


def length(order: Sequence[ConsideredWorker], ways: Ways) -> float:
    return sum(ways(a, b) for a, b in pairwise([HEAD_END, *(one.node for one in order), HEAD_END]))


def orders(
    workers: Sequence[ConsideredWorker], ways: Ways, *, needed: int = 1, least: int = 0, most: int = 15
) -> WorkerOrders:
    return WorkerOrders(workers, ways, needed=needed, layers=30, least=least, most_devices=most)


def looked_at(found: WorkerOrders) -> list[Order]:
    return list(found.all())


@pytest.mark.parametrize("seed", range(10))
def test_of_up_to_six_workers_the_shortest_order_of_each_set_is_looked_at(seed: int) -> None:
    workers, ways = places(6, seed)
    found = looked_at(orders(workers, ways))
    assert len(set(found)) == len(found)
    sets = {frozenset(one.node for one in order) for order in found}
    assert len(sets) == 64
    for some in sets:
        mine = [length(order, ways) for order in found if {one.node for one in order} == some]
        given = [one for one in workers if one.node in some]
        assert min(mine) == pytest.approx(min(length(order, ways) for order in permutations(given)))


def test_all_orders_of_three_are_looked_at_and_few_of_more() -> None:
    found = looked_at(orders(*places(6, 1)))
    of_size = [sum(len(order) == size for order in found) for size in range(7)]
    assert of_size == [1, 6, 30, 120, 60, 24, 4]


@pytest.mark.parametrize("seed", [7, 13, 16, 18])
def test_a_way_over_many_is_as_short_as_any_that_is_found(seed: int) -> None:
    """By the given order alone, or with the farthest one next, it is longer in three: by up to 11 %."""
    workers, ways = places(20, seed)
    chance = Random(1)
    others = (chance.sample(workers, 20) for _ in range(6))
    shortest = min(length(short_way(other, ways), ways) for other in others)
    found = short_way(workers, ways)
    assert sorted(one.node for one in found) == [one.node for one in workers]
    assert length(found, ways) <= 1.01 * shortest


def test_a_way_in_one_direction_only_is_taken_in_that_direction() -> None:
    workers = [ConsideredWorker(name, 1, 1.0) for name in "abcdefgh"]
    slow = {(b, a) for a, b in pairwise("hgfedcba")}

    found = short_way(workers, lambda a, b: 9.0 if (a, b) in slow else 1.0)
    assert length(found, lambda a, b: 9.0 if (a, b) in slow else 1.0) == 9


def test_where_no_order_is_shorter_it_stays() -> None:
    workers = [ConsideredWorker(name, 1, 1.0) for name in "dbca"]
    assert short_way(workers, lambda _a, _b: 0.1 + 0.2) == tuple(workers)


def worker(node: str, room: int = 30, layer: float = 1.0) -> ConsideredWorker:
    return ConsideredWorker(node, room, layer)


def nodes_of(found: WorkerOrders) -> set[str]:
    return {one.node for order in found.all() for one in order}


@pytest.mark.parametrize("special", ["near", "fast", "large"])
def test_of_many_the_nearest_the_fastest_and_the_largest_are_looked_at(special: str) -> None:
    """Each is the last one by all else."""
    usual = [worker(f"w{number}", 10) for number in range(10)]
    one = {
        "near": worker("near", 1, 5.0),
        "fast": worker("fast", 1, 0.1),
        "large": worker("large", 30, 5.0),
    }[special]

    def ways(a: str, b: str) -> float:
        return 0.1 if {a, b} == {HEAD_END, "near"} else 9.0 if one.node in (a, b) else 1.0

    assert one.node in nodes_of(orders([*usual, one], ways))


def test_one_without_room_is_not_looked_at() -> None:
    assert nodes_of(orders([worker("a"), worker("b", 0)], lambda _a, _b: 1.0)) == {"a"}


def test_as_many_as_are_needed_take_part_even_if_they_are_more_than_six() -> None:
    workers, ways = places(20, 1)
    found = looked_at(orders([worker(one.node, 3) for one in workers], ways, needed=24))
    large = [order for order in found if len(order) > 6]
    assert {len(order) for order in large} == {8, 9, 10, 11}, "the head may hold six"
    assert all(len(order) == len(set(order)) for order in large)
    turned = {order[::-1] for order in large}
    assert turned == set(large), "in both directions"
    assert min(length(order, ways) for order in large if len(order) == 10) < 2.5


def test_and_as_many_as_the_user_wants() -> None:
    workers, ways = places(12, 1)
    assert max(len(order) for order in looked_at(orders(workers, ways, least=9))) >= 9


def test_never_more_devices_than_llama_cpp_takes() -> None:
    workers = [ConsideredWorker(f"w{number}", 2, 1.0, devices=2) for number in range(20)]
    found = orders(workers, lambda _a, _b: 1.0, needed=14, most=15)
    sizes = {len(order) for order in found.all()}
    assert max(sizes) == 7
    largest = max(found.all(), key=len)
    beside = found.beside([one.node for one in largest])
    assert max(len(order) for order in beside) == 7


def test_beside_a_set_are_those_that_differ_in_one() -> None:
    workers, ways = places(8, 1)
    found = orders(workers, ways, least=2)
    some = {"w00", "w01"}
    sets = {frozenset(one.node for one in order) for order in found.beside(sorted(some))}
    assert frozenset(some) in sets, "in other orders"
    assert {len(one ^ some) for one in sets} == {0, 1, 2} and all(len(one) >= 2 for one in sets)
    assert len(sets) == 1 + 6 + 2 * 6
    assert not list(orders(*places(6, 1)).beside(["w00"])), "all sets of them are looked at"


def test_however_many_there_are_few_are_looked_at() -> None:
    workers, ways = places(64, 1)
    found = orders([worker(one.node, 2) for one in workers], ways, needed=28)
    assert len(looked_at(found)) < 400
    assert len(list(found.beside([f"w{number:02}" for number in range(14)]))) < 1000


def counted(ways: Ways) -> tuple[Ways, Counter[str]]:
    """With how often it is asked."""
    count: Counter[str] = Counter()

    def asked(a: str, b: str) -> float:
        count["ways"] += 1
        return ways(a, b)

    return asked, count


@pytest.mark.parametrize("devices", [1, 2])
def test_a_mesh_of_very_many_small_workers_is_looked_at_as_fast_as_one_of_many(devices: int) -> None:
    """Most have no place beside those that are taken already, and each rank of one asks for many ways."""
    asked: list[int] = []
    for number in (64, 256):
        workers, ways = places(number, 1)
        asking, count = counted(ways)
        small = [replace(worker(one.node, 1), devices=devices) for one in workers]
        found = orders(small, asking, needed=28)
        assert len(looked_at(found)) < 400
        assert len(list(found.beside([one.node for one in found._workers[:14]]))) < 1000
        asked.append(count["ways"])
    assert asked[1] < 1.3 * asked[0] < 2_000_000


def test_the_search_ends_where_no_other_worker_has_a_place() -> None:
    workers, ways = places(64, 1)
    asking, count = counted(ways)
    looked_at(orders([worker(one.node, 1) for one in workers], asking, needed=28))
    assert count["ways"] < 300_000, "700,000 where those without a place are ranked as well"


def test_the_way_over_very_many_is_the_nearest_next() -> None:
    workers, ways = places(256, 1)
    asking, count = counted(ways)
    found = short_way(workers, asking)
    assert {one.node for one in found} == {one.node for one in workers} and len(found) == 256
    assert count["ways"] < 100_000 and length(found, ways) < 0.2 * length(workers, ways)


def test_the_best_of_very_many_are_looked_at_wherever_they_are_in_the_list() -> None:
    usual = [worker(f"w{number:03}", 1, 5.0) for number in range(250)]
    best = [worker("near", 1, 5.0), worker("fast", 1, 0.1), worker("large", 30, 5.0)]

    def ways(a: str, b: str) -> float:
        return 0.1 if {a, b} == {HEAD_END, "near"} else 1.0

    assert {"near", "fast", "large"} <= nodes_of(orders([*usual, *best], ways))
