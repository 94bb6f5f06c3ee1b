"""Cuts of a row of layers."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st
from meshd.plan.by_memory import partition, share_out


def _cuts(layers: int, devices: int) -> list[tuple[int, ...]]:
    result = []
    for borders in combinations(range(1, layers), devices - 1):
        points = [0, *borders, layers]
        result.append(tuple(end - begin for begin, end in pairwise(points)))
    return result


def _keeps(counts: tuple[int, ...], costs: list[list[int]], limits: list[int]) -> bool:
    begin = 0
    for count, row, limit in zip(counts, costs, limits, strict=True):
        if sum(row[begin : begin + count]) > limit:
            return False
        begin += count
    return True


@st.composite
def _problems(draw: st.DrawFn) -> tuple[list[list[int]], list[int], list[int]]:
    layers, devices = draw(st.integers(1, 8)), draw(st.integers(1, 4))
    costs = [draw(st.lists(st.integers(1, 9), min_size=layers, max_size=layers)) for _ in range(devices)]
    limits = draw(st.lists(st.integers(-2, 40), min_size=devices, max_size=devices))
    return costs, [max(0, limit) for limit in limits], limits


@given(_problems())
def test_finds_a_cut_exactly_when_there_is_one(problem: tuple[list[list[int]], list[int], list[int]]) -> None:
    costs, weights, limits = problem
    found = partition(costs, weights=weights, limits=limits)
    possible = [cut for cut in _cuts(len(costs[0]), len(costs)) if _keeps(cut, costs, limits)]
    if found is None:
        assert not possible
    else:
        assert found in possible


def test_equal_devices_get_equal_shares() -> None:
    for devices in range(1, 5):
        counts = partition([[10] * 30] * devices, weights=[7] * devices, limits=[1000] * devices)
        assert counts is not None
        assert max(counts) - min(counts) <= 1
        assert sum(counts) == 30


def test_shares_follow_the_weights() -> None:
    assert partition([[1] * 40] * 3, weights=[10, 20, 10], limits=[40] * 3) == (10, 20, 10)


def test_a_limit_moves_layers_on() -> None:
    assert partition([[1] * 10] * 2, weights=[1, 1], limits=[3, 9]) == (3, 7)
    assert partition([[1] * 10] * 2, weights=[1, 1], limits=[9, 3]) == (7, 3)
    assert partition([[1] * 10] * 2, weights=[1, 1], limits=[3, 3]) is None


def test_more_devices_than_layers_is_no_cut() -> None:
    assert partition([[1]] * 2, weights=[1, 1], limits=[9, 9]) is None


@given(
    st.lists(st.floats(0, 100), min_size=1, max_size=8).filter(lambda shares: sum(shares) > 0.1),
    st.integers(1, 90),
)
def test_share_out_is_whole_and_fair(shares: list[float], layers: int) -> None:
    counts = share_out(shares, layers)
    assert sum(counts) == layers
    assert all(count >= 0 for count in counts)
    given_any = [count for count, share in zip(counts, shares, strict=True) if share > 0]
    if len(given_any) <= layers:
        assert all(given_any)
    assert all(count == 0 for count, share in zip(counts, shares, strict=True) if share == 0)


def test_share_out_keeps_proportions() -> None:
    assert share_out((1, 1), 30) == (15, 15)
    assert share_out((3, 1), 30) == (23, 7)
    assert share_out((1, 0.001), 30) == (29, 1)
