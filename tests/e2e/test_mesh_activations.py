"""`activations = f16`: hidden states take half the bytes on the links between nodes."""

import asyncio
from pathlib import Path

import pytest

from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, play
from tests.e2e.test_mesh_push import HEADLESS, TOKENS, pushes, sent_to
from tests.soak import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

HALF = 2 * (576 + 1)  # bytes of a row of SmolLM2-135M
PROMPT_TOKENS = counts(512, 1600)
MESSAGES = 400  # bytes of a token for requests and frames of all layers


async def log_of(home: Path) -> str:
    return await asyncio.to_thread((home / "logs" / "meshd.log").read_text)


def test_a_token_takes_half_from_worker_to_worker(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2())
            options = (
                "--min-workers",
                "2",
                "--set",
                "serve.activations=f16",
                *HEADLESS,
                *SAME_THREADS,
            )
            head = await fleet.head(smollm2(), *options, token=token)
            status = await fleet.ready(head)
            assert pushes(status)["worker-1"] == (True, "")
            crossed = []
            for tokens in (TOKENS, 2 * TOKENS):
                before = await sent_to(workers[0], "worker-1")
                assert await api_of(status).complete(PROMPT, tokens)
                crossed.append(await sent_to(workers[0], "worker-1") - before)
            a_token = (crossed[1] - crossed[0]) / TOKENS
            print(f"{a_token:.0f} bytes a token from worker-0 to worker-1")  # noqa: T201
            assert HALF <= a_token < HALF + MESSAGES
            log = await log_of(head.spec.home)
            assert "activations_f32" not in log
            for worker in workers:
                assert "rpc_refused" not in await log_of(worker.spec.home)

    play(check())
