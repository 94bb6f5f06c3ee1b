"""Head and workers on one machine, as they come: their traffic goes past the links, and means the same.

What is lost there, test_what_crashes_with_the_defaults shows.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from meshd.fleet.fleet import crossed_bytes
from meshd.tunnel.interface import LISTEN_LOCAL

from tests.e2e.alone import alone
from tests.e2e.models import smollm2
from tests.e2e.nodes import LOCALLY, PROMPT, SAME_THREADS, Fleet, api_of, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 48
GRACE = 10.0
MB = 1 << 20


def test_what_a_model_needs_goes_past_the_links(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), smollm2(), options=LOCALLY)
            head = await fleet.head(smollm2(), *LOCALLY, "--min-workers", "2", *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            status = await head.status()
            assert [tunnel.listen for tunnel in status.tunnels] == [LISTEN_LOCAL] * 2
            passed = sum(tunnel.sent_bytes + tunnel.received_bytes for tunnel in status.tunnels)
            on_links = sum(
                peer.link.sent_bytes + peer.link.received_bytes for peer in status.peers if peer.link
            )
            assert passed > 10 * on_links, "a load alone takes hundreds of kB"
            assert crossed_bytes(status) == passed + on_links
            assert model_of(status).weights_network_bytes == 0

    play(check())


def test_a_worker_that_is_suspended_is_lost_after_the_grace_and_answers_go_on(tmp_path: Path) -> None:
    """Its connection stays open and silent, as nothing on this machine ends it."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            options = (*LOCALLY, "--grace", str(int(GRACE)))
            token, workers = await fleet.workers(smollm2(), smollm2(), options=options)
            head = await fleet.head(smollm2(), *options, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            used = {part.node for part in model_of(status).split if part.layers}
            victim = next(worker for worker in workers if worker.spec.name in used)
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGSTOP)
            try:
                text, seconds = await api_of(status).complete_through_503(PROMPT, TOKENS, seconds=120.0)
                assert text == reference
                print(f"{seconds:.1f} s after the worker was suspended")  # noqa: T201
                status = await head.status()
                assert victim.spec.name not in {part.node for part in model_of(status).split if part.layers}
            finally:
                os.kill(victim.pid, signal.SIGCONT)
            await asyncio.sleep(0)

    play(check(), seconds=300.0)
