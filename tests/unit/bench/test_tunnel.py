"""Test that what the tunnel adds is compared with the pump of the same moment."""

import pytest

from tests.bench.tunnel import TunnelPath, TunnelResult, lines


def test_what_a_tunnel_adds_is_above_the_plain_connection_of_the_same_moment() -> None:
    result = TunnelResult(
        meshd=(TunnelPath(8e6, 3e-6), TunnelPath(4e6, 13e-6), TunnelPath(6e6, 4e-6)),
        bare=(TunnelPath(16e6, 2e-6), TunnelPath(8e6, 12e-6), TunnelPath(8e6, 3e-6)),
        plain=(1e-6, 11e-6, 2e-6),  # a machine that was slow for a moment
    )
    assert result.rate_ratios == [0.5, 0.5, 0.75]
    assert result.added[0] == pytest.approx([2e-6, 2e-6, 2e-6])
    assert result.added_ratios == pytest.approx([2, 2, 2])
    rate, added = lines(result)
    assert rate.startswith("bytes: 6 (4 to 8) MB/s") and "ratio 0.500 (0.500 to 0.750)" in rate
    assert added.startswith("added round trip: 2 (2 to 2) µs")
