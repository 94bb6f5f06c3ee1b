"""From asking to ready over a line whose round trip TCP sees: counted in round trips, not in seconds.

The round trip is so long that what the machine itself takes matters little, and the same start at no distance
is taken off all the same. It is shorter than the second after which Linux sends a SYN again
(TCP_TIMEOUT_INIT): a connection whose SYN was sent twice begins with a window of one packet, and at 1000 ms
most do. BBR lets four packets in flight for a round trip and 200 ms, 10 s after a link was made and every
10 s from then on (PROBE_RTT). This and whatever else the machine does only adds to a start, so the shortest
of each kind count; far and near take turns, for both to meet the same machine, and where the machine was busy
all the time they take more turns. One round trip too many is in every start, however many there are; a near
start that was never short could hide it on a busy machine, and not on a quiet one. It stays a matter of a
clock, so a busy machine may fail it, and `make soak` runs it; that nothing is asked one after another is held
by messages, in tests/unit/head/test_leases.py.

What the machines compute cancels out, so what is left are round trips: those that messages need, which
test_round_trips.py counts in every run with windows that are wide from the start, and those in which windows
grow for the bytes of a load (docs/decisions/0033-ready.md).
"""

import asyncio
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.fleet.fleet import FleetSpec, ready_or_raise
from meshd.fleet.proxy import run_loop

from tests.bench.networks import WiredFleet
from tests.bench.readiness import REMOTE, Serving
from tests.bench.ready_figures import ROUND_TRIPS
from tests.e2e.models import cache_folder, native, smollm2
from tests.soak import SOAK

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

LONG_MS = 800.0
TURNS = 3  # at least
MOST_TURNS = 12
LOAD = 2  # HELLO to all workers, and their weights: each is asked when the one before is answered


def own(workers: int) -> float:
    """Round trips of llama-server itself: its load, and a token that goes from worker to worker and back."""
    return LOAD + (workers + 1) / 2


def trips(far: Sequence[float], near: Sequence[float]) -> float:
    """Return the round trips of the shortest starts: what the distance adds."""
    return (min(far) - min(near)) * 1000 / LONG_MS


async def serving(owner: Owner, model: Path, folder: Path, workers: int, rtt_ms: float) -> Serving:
    """A head with workers so far away; the head computes nothing, so each token crosses."""
    folder.mkdir()  # noqa: ASYNC240
    spec = FleetSpec(
        folder=folder,
        cache=cache_folder(),
        model=model,
        worker_model=model,
        round_trips=[rtt_ms / 1000] * workers,
        head_options=REMOTE,
    )
    return await Serving.start(owner, WiredFleet(spec))


@cache
def added(workers: int) -> float:
    """Return the round trips that the distance adds to the shortest start."""
    native()
    model = smollm2()

    async def main(folder: Path) -> float:
        far: list[float] = []
        near: list[float] = []
        async with Owner() as owner:
            distant = await serving(owner, model, folder / "far", workers, LONG_MS)
            close = await serving(owner, model, folder / "near", workers, 0.0)
            while len(far) < TURNS or (trips(far, near) > ROUND_TRIPS and len(far) < MOST_TURNS):
                far.append(await distant.again())
                near.append(await close.again())
            owner.cancel()
        shown = ", ".join(f"{one:.2f} and {other:.2f}" for one, other in zip(far, near, strict=True))
        print(f"{workers} workers: far and near {shown} s")  # noqa: T201
        return trips(far, near)

    with tempfile.TemporaryDirectory(prefix="meshd-ready-") as name:
        found = asyncio.run(main(Path(name)))
    print(f"{found:.2f} round trips, of them llama-server's {own(workers):g}")  # noqa: T201
    return found


by_a_clock = pytest.mark.skipif(
    not SOAK, reason="what a clock says decides: MESHD_SOAK=1, or `python -m tests.bench.readiness`"
)


@by_a_clock
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_no_start_is_shorter_than_it_can_be(workers: int) -> None:
    """Otherwise something else than the distance was measured."""
    assert added(workers) > own(workers) - 1


@by_a_clock
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_ready_is_eight_round_trips_away(workers: int) -> None:
    assert added(workers) <= ROUND_TRIPS


def test_tcp_sees_the_distance(tmp_path: Path) -> None:
    """The kernel's own estimate of the round trip, and meshd's, are that of the wire."""
    smollm2()

    async def main() -> list[float]:
        with tempfile.TemporaryDirectory(prefix="meshd-wire-") as name:
            fleet = WiredFleet(
                FleetSpec(
                    folder=Path(name),
                    cache=cache_folder(),
                    model=smollm2(),
                    worker_model=smollm2(),
                    round_trips=[0.1],
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
