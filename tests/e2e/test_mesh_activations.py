"""`activations = f16`: hidden states take half the bytes on the links between nodes."""

import asyncio
from pathlib import Path

import pytest
from meshd.bench.llama import measure
from meshd.fleet.fleet import LocalNode

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


def test_a_long_prompt_takes_less_with_compression_as_well(tmp_path: Path) -> None:
    """Over all links: two workers, no token twice, repeats taken out; the rest is states."""

    async def check() -> None:
        crossed = {}
        async with Fleet(tmp_path) as fleet:
            given = ("--set", "links.compress=on")
            token, workers = await fleet.workers(smollm2(), smollm2(), options=given)
            for activations in ("f32", "f16"):
                options = (
                    "--min-workers",
                    "2",
                    "--ctx-size",
                    "2048",
                    "--set",
                    f"serve.activations={activations}",
                    *given,
                )
                head = await fleet.head(
                    smollm2(), *options, *HEADLESS, *SAME_THREADS, token=token, name=activations
                )
                await fleet.ready(head)
                place = head.spec.home / "llama.sock"
                await measure(place, prompt_tokens=8, tokens=4)
                before = await all_links(head, workers[0])
                await measure(place, prompt_tokens=PROMPT_TOKENS, tokens=1)
                crossed[activations] = await all_links(head, workers[0]) - before
                await head.stop()
                fleet.forget(head)
        print(f"prompt of {PROMPT_TOKENS} tokens, compressed, bytes: {crossed}")  # noqa: T201
        assert crossed["f16"] < 0.7 * crossed["f32"]

    play(check())


async def all_links(head: LocalNode, worker: LocalNode) -> int:
    """Bytes between the head and both workers, both ways, and from the first worker to the second."""
    links = [peer.link for peer in (await head.status()).peers if peer.link is not None]
    return sum(link.sent_bytes + link.received_bytes for link in links) + await sent_to(worker, "worker-1")
