"""What a peer's status says of its paths."""

from dataclasses import replace

import pytest

from tests.unit.admin.test_snapshot import path, peer


@pytest.mark.parametrize(
    ("floor", "least", "last", "idle"),
    [(1.0, 2.0, 3.0, 1.0), (None, 2.0, 3.0, 2.0), (None, None, 3.0, 3.0), (None, None, None, None)],
)
def test_an_idle_round_trip_is_the_shortest_that_is_known(
    floor: float | None, least: float | None, last: float | None, idle: float | None
) -> None:
    found = replace(path(selected=True), rtt_floor=floor, rtt_min=least, rtt=last)
    assert found.idle_rtt == idle


def test_a_peer_is_here_if_the_path_that_carries_data_is_of_this_machine() -> None:
    here, there = path(selected=True, where="loopback"), path(selected=True)
    spare = path(selected=False, where="loopback")
    assert peer(here, path(selected=False)).is_here
    assert not peer(there, spare).is_here and not peer(spare).is_here and not peer().is_here
