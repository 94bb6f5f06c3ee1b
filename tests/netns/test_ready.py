"""From asking to ready over a line whose round trip TCP sees: counted in round trips, not in seconds.

The round trip is so long that what the machine itself takes matters little, and the same start at no distance
is taken off all the same. It is shorter than the second after which Linux sends a SYN again
(TCP_TIMEOUT_INIT): a connection whose SYN was sent twice begins with a window of one packet, and at 1000 ms
most do. BBR lets four packets in flight for a round trip and 200 ms, 10 s after a link was made and every
10 s from then on (PROBE_RTT): so the shortest of some starts counts; what happens besides only adds to it.
"""

import asyncio
import tempfile
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.bench.interface import ReadyArgs
from meshd.bench.readiness import measure
from meshd.bench.ready_figures import ROUND_TRIPS
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.fleet.node import ready_or_raise
from meshd.fleet.proxy import run_loop

from tests.e2e.models import cache_folder, patched, smollm2

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

LONG_MS = 400.0
RUNS = 3
NOISE = 0.5  # round trips, 200 ms: two starts of a busy machine differ by so much
LOAD = 4  # of llama-server's RPC: test_native_load counts its questions


def own(workers: int) -> float:
    """Round trips of llama-server itself: its load, and a token that goes from worker to worker and back."""
    return LOAD + (workers + 1) / 2


class Quiet:
    """Progress is for people."""

    def line(self, text: str = "") -> None:
        """Nothing."""

    def json(self, value: object, *, compact: bool = False) -> None:
        """Nothing."""

    def table(self, headers: object, rows: object) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def progress(self, step: str, share: float | None = None) -> None:
        """Nothing."""


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_round_trips_from_asking_to_ready(workers: int) -> None:
    patched(), smollm2()
    asked = ReadyArgs(
        model=smollm2(), cache=cache_folder(), workers=(workers,), round_trips=(0.0, LONG_MS), runs=RUNS
    )
    found = measure(asked, Quiet())
    near, far = (found.seconds(workers, rtt)[0] for rtt in (0.0, LONG_MS))
    trips = (far - near) * 1000 / LONG_MS
    print(f"{workers} workers: {trips:.1f} round trips, of them llama-server's {own(workers):g}")  # noqa: T201
    assert trips > own(workers) - 1, "a way that is shorter than it can be"
    assert trips <= ROUND_TRIPS + NOISE


def test_tcp_sees_the_distance(tmp_path: Path) -> None:
    """The kernel's own estimate of the round trip, and meshd's, are that of the wire."""
    patched(), smollm2()

    async def main() -> list[float]:
        with tempfile.TemporaryDirectory(prefix="meshd-wire-") as name:
            fleet = Fleet(
                FleetSpec(
                    folder=Path(name),
                    cache=cache_folder(),
                    model=smollm2(),
                    worker_model=smollm2(),
                    round_trips=[0.1],
                    wire=True,
                )
            )
            async with Owner() as owner:
                await fleet.start_workers(owner)
                head = await fleet.start_head(owner)
                status = await head.until(ready_or_raise)
                shown = await asyncio.create_subprocess_exec(
                    *head.spec.prefix, "ss", "-tin", "state", "established", stdout=asyncio.subprocess.PIPE
                )
                text = (await shown.communicate())[0].decode()
                owner.cancel()
            links = [peer.link for peer in status.peers if peer.link is not None]
            assert {link.kind for link in links} == {"tcp"}
            times = [link.rtt_ms for link in links if link.rtt_ms is not None]
            of_tcp = [float(part[4:].split("/")[0]) for part in text.split() if part.startswith("rtt:")]
            return [*times, *(one for one in of_tcp if one > 50)]

    found = run_loop(main())
    assert len(found) >= 2
    assert all(time >= 100 for time in found)
