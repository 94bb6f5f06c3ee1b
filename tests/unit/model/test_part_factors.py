"""Factors of parts are found from whole sums: those that explain all of them, and never far-fetched ones."""

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.part_factors import LEAST_FACTOR, MOST_FACTOR, Part, fitted

DEVICES: list[Part] = [("device", name) for name in "abcd"]
PATHS: list[Part] = [("path", name) for name in "abcd"]
ONE, OTHER = DEVICES[:2]
shares = st.dictionaries(st.sampled_from(DEVICES + PATHS), st.floats(0.001, 1), min_size=1)
sums = st.lists(st.tuples(shares, st.floats(0.01, 100)), max_size=20)


def whole(found: dict[Part, float]) -> dict[Part, float]:
    """So that they are 1 together."""
    return {part: share / sum(found.values()) for part, share in found.items()}


def split_over(layers: Sequence[float], ways: Sequence[float]) -> dict[Part, float]:
    """By device, and by path."""
    return whole(
        {part: amount for part, amount in zip(DEVICES + PATHS, [*layers, *ways], strict=True) if amount}
    )


def measured_splits() -> list[dict[Part, float]]:
    """Of each pair of devices two: most layers on the one, or on the other; over slow or fast paths."""
    found = []
    for one, other in itertools.permutations(range(4), 2):
        layers, ways = [0.0] * 4, [0.0] * 4
        layers[one], layers[other] = 2.0, 1.0
        ways[one], ways[other] = (0.3, 0.9) if one < other else (0.2, 0.3)
        found.append(split_over(layers, ways))
    return found


def took(split: dict[Part, float], true: dict[Part, float]) -> float:
    return sum(share * true[part] for part, share in split.items())


def test_nothing_is_known_of_anything() -> None:
    nothing = fitted([])
    assert not nothing and nothing.of(ONE) == 1 and nothing.ratio({ONE: 3.0}) == 1 and nothing.ratio({}) == 1


@given(shares, st.floats(LEAST_FACTOR, MOST_FACTOR), shares)
def test_one_sum_says_the_same_of_all_its_parts(
    split: dict[Part, float], ratio: float, other: dict[Part, float]
) -> None:
    found = fitted([(whole(split), ratio)])
    assert all(found.of(part) == pytest.approx(ratio) for part in split)
    kinds = {kind for kind, _ in split}
    for part in other:
        assert found.of(part) == pytest.approx(ratio if part[0] in kinds else 1.0)


def test_two_sums_tell_their_parts_apart() -> None:
    found = fitted([({ONE: 0.9, OTHER: 0.1}, 1.0), ({ONE: 0.1, OTHER: 0.9}, 1.5)])
    assert found.of(ONE) == pytest.approx(0.95, abs=0.03) and found.of(OTHER) == pytest.approx(1.55, abs=0.05)
    assert found.of(DEVICES[2]) == pytest.approx((found.of(ONE) + found.of(OTHER)) / 2), "a device like them"
    assert found.of(PATHS[0]) == 1, "no path was in them"


@given(
    st.lists(st.floats(0.75, 1.5), min_size=8, max_size=8),
    st.lists(st.floats(0, 1), min_size=12, max_size=12).filter(any),
    st.permutations(measured_splits()),
)
def test_a_few_splits_predict_those_that_never_ran(
    factors: list[float], weights: list[float], ran: list[dict[Part, float]]
) -> None:
    """Any true factors; pairs of devices were measured, and any split between these is predicted."""
    true = dict(zip(DEVICES + PATHS, factors, strict=True))
    found = fitted([(split, took(split, true)) for split in ran])
    mixed = dict.fromkeys(true, 0.0)
    for weight, split in zip(weights, ran, strict=True):
        for part, share in split.items():
            mixed[part] += weight * share
    unseen = whole(mixed)
    assert found.ratio(unseen) == pytest.approx(took(unseen, true), rel=0.08)


@given(sums)
def test_factors_stay_within_bounds_whatever_is_told(told: Sequence[tuple[dict[Part, float], float]]) -> None:
    found = fitted(told)
    for part in DEVICES + PATHS:
        assert LEAST_FACTOR <= found.of(part) <= MOST_FACTOR
    for split, _ in told:
        assert LEAST_FACTOR * 0.999 <= found.ratio(split) <= MOST_FACTOR * 1.001
