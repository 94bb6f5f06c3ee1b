"""`meshd bench transport` over its own line: what it measures is there, and what it starts is gone."""

import asyncio
from pathlib import Path

import pytest
from meshd.bench.transport import measure, share
from meshd.bench.wan import WanLine


@pytest.mark.parametrize("way", ["tcp", "webrtc", "aiortc", "aioquic", "tls"])
def test_a_link_over_the_line(way: str) -> None:
    line = WanLine(rtt_ms=20.0, mbit=100.0)
    figure = asyncio.run(measure(way, line, bulk=1 << 20, pings=5, control="cubic"))
    assert figure.failed == ""
    assert 0 < figure.rate < line.mbit * 125_000
    assert all(ping > 0.02 for ping in figure.pings)
    assert len(figure.pings) == 2


def test_beside_a_tcp_flow() -> None:
    figure = asyncio.run(share("tcp", WanLine(rtt_ms=10.0, mbit=100.0), "cubic", seconds=4.0))
    assert figure.failed == ""
    assert figure.rate > 0
    assert figure.beside_rate > 0


def test_nothing_is_left() -> None:
    before = set(Path("/proc").glob("[0-9]*"))
    figure = asyncio.run(measure("tcp", WanLine(rtt_ms=1.0), bulk=64 << 10))
    assert figure.failed == ""
    ours = [one for one in set(Path("/proc").glob("[0-9]*")) - before if b"meshd.bench" in _command(one)]
    assert ours == []


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
