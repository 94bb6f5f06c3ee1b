"""A real llama-server that makes no progress: the head ends it and starts another one, and answers go on.

The model runs on the head alone, so no worker misses llama-server before the head does.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from meshd.devices.interface import IS_SUSPENDED
from meshd.fleet.fleet import LocalNode
from meshd.gateway.upstream import ENDS_SERVER

from tests.e2e.api_client import Api, Streamed
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, gone, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(1500)]

SECONDS = 1200.0  # of one test; the head takes up to a minute to see that llama-server hangs, twice in one
TOKENS = 120
BEGUN = 10  # pieces that each answer has when llama-server hangs
# After n letters there are 64^n ways through it, and llama.cpp compares each with all others. After three it
# hangs, on any machine; with fewer ways it would become slow first, and how slow depends on the machine.
AMBIGUOUS = "root ::= " + " | ".join(f'"x" root "{number}"' for number in range(64))
WHY = "it made no progress for 20 of 60 s, so meshd ended it"


async def begin_two(api: Api) -> Sequence[asyncio.Future[Streamed]]:
    """Return two answers that have begun."""
    loop, begun = asyncio.get_running_loop(), [asyncio.Event(), asyncio.Event()]

    def count(event: asyncio.Event) -> Callable[[Streamed], None]:
        def on_piece(so_far: Streamed) -> None:
            if so_far.pieces == BEGUN:
                loop.call_soon_threadsafe(event.set)

        return on_piece

    prompts = (PROMPT, "Tell me about trees.")
    streams = [
        asyncio.ensure_future(api.stream(prompt, TOKENS, on_piece=count(event)))
        for prompt, event in zip(prompts, begun, strict=True)
    ]
    for event in begun:
        await event.wait()
    return streams


async def go_on(streams: Sequence[asyncio.Future[Streamed]]) -> None:
    """Wait until both answers are whole."""
    for streamed in await asyncio.gather(*streams):
        assert (streamed.error, streamed.done, streamed.tokens) == ("", True, TOKENS)


async def head_alone(fleet: Fleet) -> LocalNode:
    options = (
        "--min-workers",
        "0",
        "--ctx-size",
        "2048",
        "--set",
        "serve.continue_answers=600",
        *SAME_THREADS,
    )
    head = await fleet.head(smollm2(), *options)
    await fleet.ready(head)
    return head


def reasons(head: LocalNode) -> str:
    return (head.spec.home / "node.log").read_text(errors="replace")


def test_one_that_is_suspended_is_replaced_and_open_answers_go_on(tmp_path: Path) -> None:
    """The system tells of this one, so nobody waits for the watch."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            head = await head_alone(fleet)
            status = await head.status()
            server = child_pid(status, "llama-server")
            streams = await begin_two(api_of(status))
            os.kill(server, signal.SIGSTOP)
            await gone({server}, seconds=SECONDS)
            await go_on(streams)
            assert child_pid(await head.status(), "llama-server") != server
            assert IS_SUSPENDED in reasons(head)

    play(check(), seconds=SECONDS)


def test_one_that_is_lost_in_a_grammar_is_replaced_and_only_that_request_fails(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            head = await head_alone(fleet)
            status = await head.status()
            api, server = api_of(status), child_pid(status, "llama-server")
            streams = await begin_two(api)
            bad = {"prompt": "Say x.", "n_predict": 60, "grammar": AMBIGUOUS, "temperature": 0}
            answer = await api.ask("POST", "/completion", bad)
            assert (answer.status, answer.retry_after) == (500, "")
            assert ENDS_SERVER in str(answer.body)
            await gone({server})
            await go_on(streams)
            assert WHY in reasons(head)
            assert await api.complete(PROMPT, 8)

    play(check(), seconds=SECONDS)
