"""Test how far nodes are from one another."""

import pytest
from meshd.fleet.networks import (
    FleetPlace,
    listen_address,
    one_way,
)


@pytest.mark.parametrize(
    ("here", "there", "seconds"), [(0, 1, 0.010), (2, 0, 0.015), (1, 2, 0.0125), (2, 1, 0.0125)]
)
def test_distances(here: int, there: int, seconds: float) -> None:
    """Between workers it is the mean of theirs."""
    assert one_way((0.020, 0.030), here, there) == pytest.approx(seconds)


def test_each_node_has_an_address_of_its_own() -> None:
    assert len({listen_address(node) for node in range(16)}) == 16


def test_a_program_runs_in_the_network_of_its_node() -> None:
    place = FleetPlace(pid=7, networks=(4, 5), api_port=1)
    assert place.prefix(1)[0] == "nsenter"
    assert "--net=/proc/7/fd/5" in place.prefix(1)
