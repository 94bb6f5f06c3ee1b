"""A worker's user takes it away for a while, and gives it back: nobody's answer is lost."""

import asyncio
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from meshd.admin.status import DrainView, Status
from meshd.model.status import DrainStatus

from tests.e2e.alone import alone
from tests.e2e.api_client import Streamed
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_BATCHES, SAME_THREADS, Fleet, api_of, cli, model_of, peer_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 100
LONG = 600  # so many that none ends while two programs start
CLIENTS = 6
OPTIONS = ("--set", "serve.continue_answers=100", "--device", "none", *SAME_THREADS, *SAME_BATCHES)


def nodes_of(status: Status) -> set[str]:
    """Return the nodes with layers of a model that is ready."""
    model = model_of(status)
    return {part.node for part in model.split if part.layers} if model.state == "ready" else set()


def test_a_worker_is_paused_drained_and_resumed_under_an_answer(tmp_path: Path) -> None:
    text, long = alone(smollm2(), TOKENS), alone(smollm2(), LONG)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet, AsyncExitStack() as stack:
            token, (one, two) = await fleet.workers(smollm2(), smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, token=token)
            api = api_of(await fleet.ready(head))
            begun, go_on = asyncio.Event(), threading.Event()
            stack.callback(go_on.set)  # a thread that waits would outlast a failed test
            loop = asyncio.get_running_loop()

            def on_piece(streamed: Streamed) -> None:
                if streamed.pieces == 10:
                    loop.call_soon_threadsafe(begun.set)
                    go_on.wait()

            answer = asyncio.ensure_future(api.stream(PROMPT, TOKENS, on_piece=on_piece))
            await begun.wait()
            paused = await cli(one.spec.home, "pause")
            assert (paused.returncode, paused.stdout.split(":")[0]) == (0, "paused"), paused.stderr
            go_on.set()
            streamed = await answer
            assert (streamed.text, streamed.error) == (text, "")
            status = await head.until(lambda now: nodes_of(now) == {"worker-1"})
            assert peer_of(status, "worker-0").paused and peer_of(status, "worker-0").state == "connected"
            assert (await one.status()).node.paused and (await one.status()).children == ()
            assert "paused" in (await cli(head.spec.home, "peers")).stdout

            resumed = await cli(one.spec.home, "resume")
            assert resumed.returncode == 0, resumed.stderr
            await head.until(lambda now: nodes_of(now) == {"worker-0", "worker-1"})

            begun.clear()
            go_on.clear()
            answer = asyncio.ensure_future(api.stream(PROMPT, LONG, on_piece=on_piece))
            await begun.wait()
            draining = asyncio.ensure_future(cli(two.spec.home, "drain"))
            told = await head.until(lambda now: peer_of(now, "worker-1").paused)
            assert (await two.status()).children != (), "the answer is under way"
            assert model_of(told).draining == DrainStatus(("worker-1",), 1)
            assert [peer.draining for peer in told.peers] == [False, True]
            assert (await two.status()).node.draining == DrainView(models=1, requests=0)
            assert "draining: 1 model still uses this node" in (await cli(two.spec.home, "status")).stdout
            go_on.set()
            assert (await answer).text == long
            drained = await draining
            assert drained.returncode == 0 and drained.stdout.startswith("drained"), drained.stderr
            assert (await two.status()).children == ()
            assert (await two.status()).node.draining is None
            told = await head.until(lambda now: nodes_of(now) == {"worker-0"})
            assert model_of(told).draining is None and not peer_of(told, "worker-1").draining
            refused = await cli(head.spec.home, "pause")
            assert refused.returncode == 1 and "lends no devices" in refused.stderr

    play(check())


def test_a_worker_is_drained_under_answers_that_overlap(tmp_path: Path) -> None:
    """More clients than there are slots, each of which asks again at once: nobody ever stops asking."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, (one, _two) = await fleet.workers(smollm2(), smollm2())
            head = await fleet.head(smollm2(), *OPTIONS, token=token)
            api = api_of(await fleet.ready(head))
            drained = asyncio.Event()
            answers: list[str] = []
            answered = asyncio.Condition()

            async def client() -> None:
                while not drained.is_set():
                    text, _ = await api.complete_through_503(PROMPT, TOKENS, seconds=100.0)
                    answers.append(text)
                    async with answered:
                        answered.notify_all()

            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(client())
                async with answered:
                    await answered.wait_for(lambda: len(answers) >= 2)
                told = await cli(one.spec.home, "drain", "--timeout", "200")
                assert told.returncode == 0 and told.stdout.startswith("drained"), told.stderr
                assert (await one.status()).children == ()
                before = len(answers)
                await head.until(lambda now: nodes_of(now) == {"worker-1"})
                async with answered:
                    await answered.wait_for(lambda: len(answers) >= before + CLIENTS)
                drained.set()
            assert all(answers)
            log = (head.spec.home / "logs" / "meshd.log").read_text()
            assert "upstream_lost" not in log, "an answer was interrupted"

    play(check())
