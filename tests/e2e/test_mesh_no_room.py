"""A worker is lost under an answer, and nothing fits without it: the answer waits until it is back."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from meshd.fleet.fleet import LocalNode

from tests.e2e.alone import alone
from tests.e2e.api_client import Answer, generation
from tests.e2e.homes import connected
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_BATCHES, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.e2e.open_answers import answers_under
from tests.e2e.test_mesh_standby import killed

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 400  # so many that it does not end before the worker is lost
CHOSEN = ("--device", "none", "--ctx-size", "2048", "--slots", "1", "--grace", "10")
WAITS = "waiting for garage to come back: `SmolLM2-135M-Instruct.Q4_1.gguf` does not fit: it needs "


async def _pause(garage: LocalNode, fleet: Fleet) -> Callable[[], Awaitable[object]]:
    await cli(garage.spec.home, "pause")
    return lambda: cli(garage.spec.home, "resume")


async def _stop(garage: LocalNode, fleet: Fleet) -> Callable[[], Awaitable[object]]:
    fleet.forget(garage)
    await cli(garage.spec.home, "stop")
    return lambda: fleet.start(garage.spec)


async def _kill(garage: LocalNode, fleet: Fleet) -> Callable[[], Awaitable[object]]:
    os.kill(killed(fleet, garage), signal.SIGKILL)
    return lambda: fleet.start(garage.spec)


@pytest.mark.parametrize("lose", [_pause, _stop, _kill], ids=["paused", "stopped", "killed"])
def test_an_answer_waits_for_a_worker_without_which_nothing_fits(
    tmp_path: Path, lose: Callable[[LocalNode, Fleet], Awaitable[Callable[[], Awaitable[object]]]]
) -> None:
    text = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            garage = await fleet.worker("garage", "--memory", "300M", model=smollm2())
            token = await garage.token()
            barn = await fleet.worker("barn", "--memory", "120M", model=smollm2(), token=token)
            await connected(barn, 1)
            options = ("--set", "serve.continue_answers=200", *CHOSEN, *SAME_THREADS, *SAME_BATCHES)
            head = await fleet.head(smollm2(), *options, token=token)
            api = api_of(await fleet.ready(head))
            waiting: list[asyncio.Future[Answer]] = []

            async def lost() -> None:
                bring_back = await lose(garage, fleet)
                status = await head.until(lambda now: model_of(now).state == "waiting")
                assert model_of(status).reason.startswith(WAITS), model_of(status).reason
                assert (await api.ask("GET", "/health")).status == 503
                asked = asyncio.ensure_future(api.ask("POST", "/completion", generation(PROMPT, TOKENS)))
                waiting.append(asked)  # without a stream, it waits as well
                await bring_back()

            (streamed,), _ = await answers_under(api, lambda: None, [PROMPT], TOKENS, when_open=lost)
            assert (streamed.error, streamed.text) == ("", text) and streamed.done
            assert [(await one).status for one in waiting] == [200]
            await fleet.ready(head)

    play(check())
