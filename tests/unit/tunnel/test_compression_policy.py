"""Where compressing pays: by what the path carried, else by what stands in between."""

from dataclasses import replace

import pytest
from meshd.peer.interface import PathStatus
from meshd.tunnel.compression_policy import judge
from meshd.wire.compressed import Compression

from tests.unit.admin.test_snapshot import path

NOTHING, REPEATS, ALL = Compression


def made(
    *, rtt: float | None, rtt_min: float | None = None, rate: float | None = None, where: str = "public"
) -> PathStatus:
    return replace(path(selected=True, where=where), rtt=rtt, rtt_min=rtt_min, rate=rate)


@pytest.mark.parametrize(
    ("facts", "how", "why"),
    [
        (made(rtt=0.0004), NOTHING, "round trip is 0.4 ms"),
        (made(rtt=0.02), ALL, "round trip is 20.0 ms"),
        (made(rtt=0.02, rtt_min=0.0005), NOTHING, "round trip is 0.5 ms"),  # loaded, not far
        (made(rtt=0.02, rate=100e6), REPEATS, "carries 100.0 MB/s"),
        (made(rtt=0.02, rtt_min=0.009, rate=100e6), NOTHING, "carries 100.0 MB/s"),
        (made(rtt=None, rate=100e6), NOTHING, "carries 100.0 MB/s"),
        (made(rtt=0.02, rate=24e6), ALL, "carries 24.0 MB/s"),
        (made(rtt=0.0004, rate=2.5e6), ALL, "carries 2.5 MB/s"),
        (made(rtt=0.02, where="loopback", rate=1e6), NOTHING, "on this machine"),
        (made(rtt=0.0004, where="relayed"), ALL, "relayed"),
        (made(rtt=None), NOTHING, "nothing is known"),
    ],
)
def test_it_is_told_by_facts(facts: PathStatus, how: Compression, why: str) -> None:
    verdict = judge([replace(path(selected=False), rtt=0.5), facts])
    assert verdict.how is how
    assert why in verdict.why


def test_without_a_path_it_does_not() -> None:
    assert judge([]).how is NOTHING
    assert judge([path(selected=False)]).how is NOTHING
