"""Real nodes at places of some kinds are joined as the kinds allow. `make nat-grid` runs every pair."""

from collections.abc import Iterator

import pytest

from tests.netns.expect import NARROW, SYMMETRIC, pairs, ways
from tests.netns.grid import Bench, bench
from tests.netns.sites import Kind, Together

# founder, joiner: one pair for each way that there is, and the harder places in both roles
TRIED = [
    (Kind.PUBLIC, Kind.ONLY_443),
    (Kind.PUBLIC, Kind.V6),
    (Kind.STEALTH, Kind.PORT_RESTRICTED),
    (Kind.CARRIER, Kind.STEALTH),
    (Kind.NO_UDP, Kind.PORT_NOT_KEPT),
    (Kind.SYMMETRIC_RANDOM, Kind.FULL_CONE),
    (Kind.SYMMETRIC_RANDOM, Kind.SYMMETRIC_COUNTING),
    (Kind.V6, Kind.ADDRESS_RESTRICTED),
    (Kind.GUEST, Kind.GUEST),
    (Kind.ONLY_443, Kind.NO_UDP),
    (Kind.NO_CROSSING, Kind.NO_CROSSING),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("grid")) as made:
        yield made


@pytest.mark.parametrize(("one", "two"), TRIED)
def test_a_pair(places: Bench, one: Kind, two: Kind) -> None:
    result = places.run(one, two)
    assert not result.error
    assert result.direct == bool(result.possible), result


@pytest.mark.parametrize("kind", Together)
def test_two_whose_places_have_to_do_with_each_other(places: Bench, kind: Together) -> None:
    result = places.run_together(kind)
    assert not result.error
    assert result.direct == bool(result.possible), result


def test_what_is_expected_of_pairs() -> None:
    """Symmetric in the pair; every kind reaches a public node; what needs a relay is named."""
    assert len(pairs()) == len(Kind) * (len(Kind) + 1) // 2
    for one, two in pairs():
        assert ways(one, two) == ways(two, one)
        assert "tcp" in ways(Kind.PUBLIC, one)
        if "udp" in ways(one, two):
            assert not {one, two} & {Kind.NO_UDP, Kind.ONLY_443}
    assert ways(Kind.SYMMETRIC_RANDOM, Kind.SYMMETRIC_COUNTING) == ()
    assert ways(Kind.SYMMETRIC_RANDOM, Kind.PORT_RESTRICTED) == ("predicted",)
    assert ways(Kind.SYMMETRIC_RANDOM, Kind.ADDRESS_RESTRICTED) == ("udp",)
    assert ways(Kind.NO_UDP, Kind.CARRIER) == ("tcp punched",)
    assert ways(Kind.V6, Kind.FULL_CONE) == ()
    assert ways(Kind.NO_CROSSING, Kind.NO_CROSSING) == ("udp",)
    assert ways(Kind.NO_CROSSING, Kind.PORT_RESTRICTED) == ("udp", "tcp punched")
    assert SYMMETRIC <= NARROW
