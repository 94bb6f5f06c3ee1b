"""Something dies in the middle of an answer: the client is told, and the next request is answered."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.alone import alone
from tests.e2e.api_client import generation
from tests.e2e.mesh_losses import AGAIN_SECONDS, LONG, again_within, hit_in_mid_answer
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, descendants, gone, play
from tests.soak import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TIMES = counts(2, 20)


def test_llama_server_killed_in_mid_answer(tmp_path: Path) -> None:
    """As test_mesh_lost_workers.py does it to an rpc-server."""
    reference = alone(smollm2(), 16)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            began = time.monotonic()
            head = await fleet.head(smollm2(), *SAME_THREADS, token=token)
            api = api_of(await fleet.ready(head))
            assert await api.complete(PROMPT, 16) == reference
            within = again_within(began)
            slowest = 0.0
            for _ in range(TIMES):
                pid = child_pid(await head.status(), "llama-server")
                streamed, left = await hit_in_mid_answer(api, pid, signal.SIGKILL, within=within)
                assert streamed.pieces >= 10
                assert streamed.error, "the stream ended without an error event"
                assert not streamed.done
                text, took = await api.complete_through_503(PROMPT, 16, seconds=left)
                assert text == reference
                slowest = max(slowest, within - left + took)
                assert slowest <= within
            print(f"{TIMES} times, answered again after {slowest:.1f} s at most")  # noqa: T201

    play(check(), seconds=900.0)


def test_a_client_that_hangs_up_frees_the_slot(tmp_path: Path) -> None:
    """The one slot of llama-server is free at once, so the next answer does not wait for the first's end."""

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            status = await fleet.ready(await fleet.head(smollm2(), *SAME_THREADS, token=token))
            api = api_of(status)

            def begin_and_leave() -> None:
                connection = api.open()
                body = json.dumps(generation("Once", LONG, stream=True))
                connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                assert answer.readline().startswith(b"data: ")
                connection.close()
                answer.close()

            for _ in range(TIMES):
                await asyncio.to_thread(begin_and_leave)
                async with asyncio.timeout(AGAIN_SECONDS):
                    await api.complete(PROMPT, 2)

    play(check())


@pytest.mark.parametrize("role", ["worker", "head"])
def test_a_daemon_killed_leaves_nothing_and_comes_back_without_a_token(tmp_path: Path, role: str) -> None:
    times = counts(2, 20)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert status.api is not None
            api_port = status.api.url.rpartition(":")[2]
            ids = {status.node.id, *(peer.id for peer in status.peers)}
            for number in range(times):
                victim = worker if role == "worker" else head
                pid = victim.pid
                assert pid is not None
                below = set(descendants(pid))
                assert below or number, "a node in use has children"
                os.kill(pid, signal.SIGKILL)
                await gone({pid, *below})
                fleet.forget(victim)
                model = ("--model", str(smollm2()))
                serve = ("--port", api_port, *SAME_THREADS)
                options = model if role == "worker" else (*model, *serve)
                spec = fleet.spec(victim.spec.name, victim.spec.role, *options)
                again = await fleet.start(spec)
                worker, head = (again, head) if role == "worker" else (worker, again)
                # both see each other again before the next kill
                await again.until(lambda s: any(peer.state == "connected" for peer in s.peers))
            status = await fleet.ready(head)
            assert await api_of(status).complete(PROMPT, 16) == alone_16
            for seen in (status, await worker.status()):
                assert {seen.node.id, *(peer.id for peer in seen.peers)} == ids, "one row for each node"
            one_lease(await worker.status(), CHILD_NAME)

    alone_16 = alone(smollm2(), 16)
    play(check(), seconds=600.0)


def one_lease(status: Status, server: str) -> None:
    """One head uses the worker, so it runs one server."""
    assert [child.name for child in status.children] == [server]
