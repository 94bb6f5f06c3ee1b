"""Where compressing pays: by what the path carried, else by what stands in between."""

from dataclasses import replace

import pytest
from meshd.peer.interface import PathStatus
from meshd.tunnel.compression_policy import judge

from tests.unit.admin.test_snapshot import path


def made(
    *, rtt: float | None, rtt_min: float | None = None, rate: float | None = None, where: str = "public"
) -> PathStatus:
    return replace(path(selected=True, where=where), rtt=rtt, rtt_min=rtt_min, rate=rate)


@pytest.mark.parametrize(
    ("facts", "pays", "why"),
    [
        (made(rtt=0.0004), False, "round trip is 0.4 ms"),
        (made(rtt=0.02), True, "round trip is 20.0 ms"),
        (made(rtt=0.02, rtt_min=0.0005), False, "round trip is 0.5 ms"),  # loaded, not far
        (made(rtt=0.02, rate=100e6), False, "carries 100.0 MB/s"),
        (made(rtt=0.0004, rate=2.5e6), True, "carries 2.5 MB/s"),
        (made(rtt=0.02, where="loopback", rate=1e6), False, "on this machine"),
        (made(rtt=0.0004, where="relayed"), True, "relayed"),
        (made(rtt=None), False, "nothing is known"),
    ],
)
def test_it_is_told_by_facts(facts: PathStatus, pays: bool, why: str) -> None:
    verdict = judge([replace(path(selected=False), rtt=0.5), facts])
    assert verdict.pays is pays
    assert why in verdict.why


def test_without_a_path_it_does_not() -> None:
    assert not judge([]).pays
    assert not judge([path(selected=False)]).pays
