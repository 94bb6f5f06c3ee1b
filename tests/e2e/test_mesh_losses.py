"""Something dies in the middle of an answer: the client is told, and the next request is answered."""

import os
import signal
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.alone import alone
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, descendants, gone, play
from tests.soak import counts

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TIMES = counts(2, 20)


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
