"""`meshd bench transport` over its own line: what it measures is there, and what it starts is gone."""

import asyncio
import os
from pathlib import Path

import pytest
from meshd.bench.transport import END, measure, share
from meshd.bench.wan import WanLine

from tests.bench.transport import END as STOCK_END


@pytest.mark.parametrize(
    ("end", "way"),
    [(END, "tcp"), (END, "webrtc"), (END, "tls"), (STOCK_END, "aiortc"), (STOCK_END, "aioquic")],
)
def test_a_link_over_the_line(end: str, way: str) -> None:
    line = WanLine(rtt_ms=20.0, mbit=100.0)
    figure = asyncio.run(measure(end, way, line, bulk=1 << 20, pings=5, control="cubic"))
    assert figure.failed == ""
    assert 0 < figure.rate < line.mbit * 125_000
    assert all(ping > 0.02 for ping in figure.pings)
    assert len(figure.pings) == 2


def test_beside_a_tcp_flow() -> None:
    figure = asyncio.run(share(END, "tcp", WanLine(rtt_ms=10.0, mbit=100.0), "cubic", seconds=4.0))
    assert figure.failed == ""
    assert figure.rate > 0
    assert figure.beside_rate > 0


def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = f"MESHD_BENCH_OF={os.getpid()}"
    monkeypatch.setenv(*mark.split("="))
    seen: list[Path] = []

    async def main() -> str:
        figure = asyncio.create_task(measure(END, "tcp", WanLine(rtt_ms=1.0), bulk=64 << 10))
        while not figure.done():
            seen.extend(_with(mark))
            await asyncio.sleep(0.02)
        return figure.result().failed

    assert asyncio.run(main()) == ""
    assert seen, "no process was started, or none has the mark"
    assert _with(mark) == []


def _with(mark: str) -> list[Path]:
    """The processes that inherited this; others' benches may run at the same time."""
    return [one for one in Path("/proc").glob("[0-9]*") if mark.encode() in _environment(one)]


def _environment(process: Path) -> bytes:
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""
