"""`meshd bench rpc`: pairs stay pairs, and their spread is shown."""

import pytest
from meshd.bench.rpc import _row, _tunnel_rows, as_table
from meshd.bench.tunnel import TunnelPath, TunnelResult


def test_what_a_tunnel_adds_is_above_the_plain_connection_of_the_same_moment() -> None:
    result = TunnelResult(
        meshd=(TunnelPath(8e6, 3e-6), TunnelPath(4e6, 13e-6), TunnelPath(6e6, 4e-6)),
        bare=(TunnelPath(16e6, 2e-6), TunnelPath(8e6, 12e-6), TunnelPath(8e6, 3e-6)),
        plain=(1e-6, 11e-6, 2e-6),  # a machine that was slow for a moment
    )
    rate, added = _tunnel_rows(result)
    assert rate.ratios == [0.5, 0.5, 0.75]
    assert added.ours == pytest.approx([2, 2, 2])
    assert added.ratios == pytest.approx([2, 2, 2])
    assert (rate.held, added.held) == (False, False)


def test_a_row_has_its_spread_without_the_pair_that_warmed_things_up() -> None:
    _, [row] = as_table([_row("decode", [1.0, 90.0, 99.0, 96.0], [50.0, 100.0, 100.0, 100.0], 0.95)])
    assert row == (
        "decode",
        "96 (90 to 99) tok/s",
        "100 (100 to 100) tok/s",
        "0.960 (0.900 to 0.990)",
        "≥ 0.95",
        "yes",
    )
