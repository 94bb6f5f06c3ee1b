"""A worker is lost while answers are computed by tensors: each goes on to its end, and the worker is named.

Prompts are such as in test_mesh_open_answers.py: the most likely token is far ahead. So whoever computes the
rest, and whether by tensors or by layers, the text is that of one node.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from meshd.fleet.fleet import LocalNode
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.api_client import Api, Streamed
from tests.e2e.models import smollm2, stock_text
from tests.e2e.nodes import (
    HIT_TRIES,
    LOCALLY,
    SAME_THREADS,
    TEST_SECONDS,
    Fleet,
    api_of,
    child_pid,
    model_of,
    play,
)
from tests.e2e.open_answers import answers_under
from tests.e2e.test_mesh_open_answers import PROMPTS
from tests.soak import SOAK, drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 60
LONG_PROMPT = "".join(f"line {number}: x\n" for number in range(10, 60))
HEAD = ("--split", "tensor", "--min-workers", "2", "--ctx-size", "4096", "--set", "serve.slots=2")
GOES_ON = ("--set", "serve.continue_answers=300", "--grace", "10")


@dataclass(frozen=True, slots=True)
class Moment:
    """When `pieces` of each answer have come; if 0, `later` seconds after they were asked for."""

    prompts: Sequence[str]
    pieces: int
    later: float = 0.0


MOMENTS = {
    "prompt": Moment([LONG_PROMPT], 0, 0.3),
    "first tokens": Moment([PROMPTS[0]], 1),
    "tokens": Moment([PROMPTS[1]], 17),
    "two answers": Moment([PROMPTS[2], PROMPTS[3]], 9),
}
SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}
Case = tuple[str, str, int]
ALL: list[Case] = list(product(MOMENTS, SIGNALS, (0, 1)))
WAYS: dict[str, list[Case]] = {
    "past the daemons": [("prompt", "stopped", 1), ("tokens", "killed", 0), ("two answers", "killed", 1)],
    "through the daemons": [("first tokens", "stopped", 0)],
}


async def _answers_under(api: Api, moment: Moment, hit: Callable[[], object]) -> list[Streamed]:
    if moment.pieces:
        return (await answers_under(api, hit, moment.prompts, TOKENS, after=moment.pieces))[0]
    running = [asyncio.ensure_future(api.stream(prompt, TOKENS)) for prompt in moment.prompts]
    await asyncio.sleep(moment.later)
    hit()
    return await asyncio.gather(*running)


async def _hit(head: LocalNode, victim: LocalNode, moment: Moment, how: str) -> tuple[list[Streamed], str]:
    """Return the answers, and the head's log from their beginning until the model is lost."""
    before = len(_log(head))
    hit = partial(os.kill, child_pid(await victim.status(), CHILD_NAME), SIGNALS[how])
    streams = await _answers_under(api_of(await head.status()), moment, hit)
    await head.until(lambda _: bool(_losses(_log(head)[before:])))
    return streams, _log(head)[before:]


def _log(node: LocalNode) -> str:
    return (node.spec.home / "logs" / "meshd.log").read_text()


def _losses(log: str) -> list[str]:
    """Why the model was lost, each time."""
    return [line.partition("why=")[2].strip("'") for line in log.splitlines() if " model_lost " in line]


@pytest.mark.parametrize("way", WAYS)
def test_answers_by_tensors_go_on_whoever_is_lost(tmp_path: Path, way: str) -> None:
    prompts = {prompt for moment in MOMENTS.values() for prompt in moment.prompts}
    texts = {prompt: stock_text(smollm2(), TOKENS, prompt) for prompt in prompts}
    cases = drawn(f"losses by tensors, {way}", ALL, 0, always=WAYS[way])

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            options = LOCALLY if way == "past the daemons" else ()
            token, workers = await fleet.workers(smollm2(), smollm2(), options=options)
            head = await fleet.head(smollm2(), *HEAD, *GOES_ON, *SAME_THREADS, token=token)
            hits = 0
            for when, how, victim in cases:
                moment = MOMENTS[when]
                for _ in range(HIT_TRIES):
                    status = await fleet.ready(head)
                    assert len(_losses(_log(head))) == hits
                    hits += 1
                    assert "each layer on `worker-0` and `worker-1`" in model_of(status).split_why
                    streams, log = await _hit(head, workers[victim], moment, how)
                    for prompt, streamed in zip(moment.prompts, streams, strict=True):
                        assert (streamed.error, streamed.text) == ("", texts[prompt]), (when, how, victim)
                        assert streamed.done and streamed.tokens == TOKENS
                    [why] = _losses(log)
                    # llama-server alone tells, if the worker's daemon does not know yet
                    named = (
                        f"worker worker-{victim} is lost: ",
                        f"llama-server lost worker worker-{victim}: ",
                    )
                    assert why.startswith(named)
                    if "upstream_lost" in log:
                        break
                assert "upstream_lost" in log, "the answers were over before"

    play(check(), seconds=TEST_SECONDS * (8 if SOAK else 1))
