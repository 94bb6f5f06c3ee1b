"""Something is lost under open answers: each goes on in its stream, nothing twice and nothing left out."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e import spaces
from tests.e2e.alone import alone
from tests.e2e.apart import apart
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_BATCHES, SAME_THREADS, Fleet, api_of, child_pid, model_of, play
from tests.e2e.open_answers import answers_under
from tests.soak import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 120
TIMES = counts(1, 25)
PROMPTS = [PROMPT, "The sea", "A recipe for bread", "Once upon a time"]
GOES_ON = ("--set", "serve.continue_answers=200")
# Computed as the end of a prompt, the answer to this goes on otherwise than token by token: two of its tokens
# are nearly as likely. So its text is the undisturbed one only if it is made as it was the first time.
NEAR_TIES = "The quick brown fox jumps over the lazy dog, and the dog sleeps on under the old tree.\n" * 4


def kill(pid: int) -> Callable[[], object]:
    return lambda: os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-")
def test_answers_wait_for_the_only_worker_to_come_back(tmp_path: Path) -> None:
    """Its cable is pulled for longer than the grace: nobody else could compute the rest."""

    async def check() -> None:
        options = (*GOES_ON, "--grace", "10", *SAME_THREADS, *SAME_BATCHES)
        async with apart(tmp_path, smollm2(), worker_has=smollm2(), options=options, seed=0) as place:
            await place.fleet.ready(place.head)

            def pull() -> None:
                place.rules.flowing.clear()

            answers = asyncio.ensure_future(answers_under(place.api, pull, PROMPTS, TOKENS))
            await place.head.until(lambda status: model_of(status).state == "waiting")
            await asyncio.sleep(counts(3, 180))
            place.rules.flowing.set()
            streams, stood = await answers
            for streamed in streams:
                assert streamed.error == "" and streamed.done and streamed.tokens == TOKENS
                assert any("waiting for workers" in one for one in streamed.comments)
            print(f"went on after {max(stood):.1f} s")  # noqa: T201

    play(check(), seconds=2000.0)


def test_the_text_is_that_of_an_answer_that_nothing_disturbs(tmp_path: Path) -> None:
    """Lost under a stream, on either side, also at a near tie, and under an answer that is no stream."""
    cases = [("llama-server", PROMPT), (CHILD_NAME, PROMPT), ("llama-server", NEAR_TIES)]
    texts = {prompt: alone(smollm2(), TOKENS, prompt) for prompt in (PROMPT, NEAR_TIES)}

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *GOES_ON, *SAME_THREADS, *SAME_BATCHES, token=token)
            api = api_of(await fleet.ready(head))

            async def hits(lost: str) -> Callable[[], object]:
                at = worker if lost == CHILD_NAME else head
                return kill(child_pid(await at.status(), lost))

            for lost, prompt in cases * TIMES:
                hit = await hits(lost)
                (streamed,), _ = await answers_under(api, hit, [prompt], TOKENS)
                assert (streamed.error, streamed.text) == ("", texts[prompt]), (lost, prompt)
                await fleet.ready(head)
            whole = asyncio.ensure_future(api.complete(PROMPT, TOKENS))
            await asyncio.sleep(0.3)
            (await hits("llama-server"))()
            assert await whole == texts[PROMPT]

    play(check(), seconds=2000.0)
