"""A lost link is a pause: cut at random bytes again and again, an answer goes on and is the same."""

import asyncio
import statistics
from pathlib import Path

import pytest

from tests.e2e import spaces
from tests.e2e.alone import alone
from tests.e2e.apart import Apart, apart
from tests.e2e.api_client import Streamed
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, child_pid, peer_of, ping, play
from tests.soak import SEED, SOAK, counts

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),
    pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-"),
]

TOKENS = counts(300, 1000)
CUTS = counts(15, 50)
OUTAGE_SECONDS = counts(6, 30)
PINGS = counts(20, 60)


async def _outage_in_the_middle(place: Apart, streamed: Streamed) -> None:
    """Once a third has come: nothing gets through for a while."""
    while streamed.pieces < TOKENS // 3:  # noqa: ASYNC110 - counted in a thread, which tells nobody
        await asyncio.sleep(0.02)
    place.begin_outage()
    await asyncio.sleep(OUTAGE_SECONDS)
    place.rules.outage = False


def test_an_answer_survives_cuts_at_random_bytes_and_an_outage(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        options = (
            "--set",
            "serve.output=head",
            *SAME_THREADS,
        )  # a token is hidden states, and not some candidates
        async with apart(tmp_path, smollm2(), worker_has=smollm2(), options=options, seed=SEED) as place:
            status = await place.fleet.ready(place.head)
            server = child_pid(status, "llama-server")
            before = peer_of(status, "worker").resumes
            assert place.counts.cuts == 0
            place.rules.cutting = True
            for cutter in place.cutters:
                cutter.cut_all()  # those of now were made without a cut to come
            so_far = Streamed()

            def on_piece(streamed: Streamed) -> None:
                so_far.pieces = streamed.pieces

            async with asyncio.TaskGroup() as group:
                answer = group.create_task(place.api.stream(PROMPT, TOKENS, on_piece=on_piece))
                group.create_task(_outage_in_the_middle(place, so_far))
            streamed = answer.result()
            place.rules.cutting = False
            after = await place.head.status()
            resumes = peer_of(after, "worker").resumes - before
            print(f"MESHD_SEED={SEED}: {place.counts}, {resumes} resumes")  # noqa: T201
            assert streamed.error == ""
            assert streamed.done
            assert streamed.text == reference
            assert place.counts.cuts >= CUTS
            assert place.counts.refused > 0
            assert child_pid(after, "llama-server") == server
            assert resumes > 0

    play(check(), seconds=1500.0 if SOAK else 280.0)


def test_a_ping_beside_a_bulk_stream_on_a_slow_link(tmp_path: Path) -> None:
    """The bulk stream is weights of a worker without the file; the head begins when a second one is there.

    That no ping takes 100 ms more is shown on a virtual clock (tests/sim/test_mux.py). This shows that real
    nodes do not fill the line's buffer: it never holds a quarter of a second. On a busy machine some pings
    take longer all the same, so half of them must keep to the 100 ms.
    """
    rate = 1_000_000.0

    async def pings(place: Apart) -> list[float]:
        return [await ping(place.head, "worker") for _ in range(PINGS)]

    async def check() -> None:
        options = ("--device", "none", "--min-workers", "2")
        async with apart(
            tmp_path, smollm2(), worker_has=None, options=options, seed=SEED, rate=rate
        ) as place:
            await place.head.until(lambda status: bool(status.peers) and status.peers[0].state == "connected")
            quiet = await pings(place)
            crossed = place.counts.up + place.counts.down
            assert crossed < rate, "nothing was to be sent yet"
            token = await place.worker.token()
            await place.fleet.start(
                place.fleet.spec("other", "worker", token=token, prefix=place.head.spec.prefix)
            )
            while place.counts.up + place.counts.down < crossed + 2 * rate:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # the bulk stream has found its pace
            began, sent = asyncio.get_running_loop().time(), place.counts.up + place.counts.down
            busy = await pings(place)
            took = asyncio.get_running_loop().time() - began
            pace = (place.counts.up + place.counts.down - sent) / took
            more = statistics.median(busy) - statistics.median(quiet)
            worst, held = max(busy) - statistics.median(quiet), place.counts.most_held / rate
            print(  # noqa: T201
                f"quiet {statistics.median(quiet) * 1000:.1f} ms; beside {pace / 1000:.0f} kB/s half of "
                f"them are at most {more * 1000:.0f} ms more, the worst {worst * 1000:.0f} ms; "
                f"the line held {held * 1000:.0f} ms at most"
            )
            assert pace > 0.5 * rate, "the link was not busy: this measured nothing"
            assert more < 0.1
            assert held < 0.25

    play(check())
