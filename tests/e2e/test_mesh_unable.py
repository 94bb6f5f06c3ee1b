"""Real nodes with a worker whose device cannot run the model: the others serve, and everybody is told why."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.node import LocalNode, model_ready

from tests.e2e.alone import alone
from tests.e2e.api_client import generation
from tests.e2e.half_able import SET_ROWS, Lack, install
from tests.e2e.models import patched, smollm2
from tests.e2e.native_protocol import RPC
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, cli, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]


def servers_started(node: LocalNode) -> int:
    """How many rpc-servers this worker has started."""
    log = node.spec.home / "logs" / "meshd.log"
    return log.read_text().count("lease_granted") if log.exists() else 0


async def both(fleet: Fleet, half: Path) -> tuple[str, LocalNode]:
    """A good worker, and one with this native part; a token and the second one."""
    good = await fleet.worker("good", model=smollm2())
    token = await good.token()
    node = await fleet.worker("half", "--native-bin", str(half), model=smollm2(), token=token)
    await good.until(lambda s: any(p.name == "half" and p.state == "connected" for p in s.peers))
    return token, node


async def ready_without(head: LocalNode) -> Status:
    """The status once the model is ready and something is left out.

    A head waits for more workers for a moment only: one that began with the good one alone begins again.
    """
    for _ in range(3):
        status = await head.until(model_ready)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                return await head.until(lambda s: model_ready(s) and "left out" in model_of(s).reason)
        os.kill(child_pid(status, "llama-server"), signal.SIGKILL)
        await head.until(lambda s: not model_ready(s))
    raise AssertionError(model_of(status))


@pytest.mark.parametrize("crash", [False, True], ids=["lacks", "crashes"])
def test_the_others_serve_without_it(tmp_path: Path, crash: bool) -> None:
    reference = alone(smollm2(), 16)
    native = install(patched(), tmp_path / "native", [] if crash else [Lack(SET_ROWS)], crash=crash)
    crashed = "worker half is left out for 30 s after 2 tries: `rpc-server` was ended by SIGABRT"
    why = crashed if crash else "half CPU left out: it cannot compute SET_ROWS"

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            token, half = await both(fleet, native)
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=token)
            status = await ready_without(head)
            assert why in model_of(status).reason
            assert {part.node for part in model_of(status).split if part.layers} == {"good"}
            assert await api_of(status).complete(PROMPT, 16) == reference
            shown = await cli(head.spec.home, "status")
            assert why in " ".join(shown.stdout.split())
            assert servers_started(half) == (2 if crash else 1)

    play(check())


def test_alone_it_is_not_tried_again_and_again(tmp_path: Path) -> None:
    native = install(patched(), tmp_path / "native", [Lack(SET_ROWS)])

    async def check() -> None:
        async with Fleet(tmp_path, protocol=RPC) as fleet:
            half = await fleet.worker("half", "--native-bin", str(native), model=smollm2())
            head = await fleet.head(smollm2(), "--device", "none", *SAME_THREADS, token=await half.token())
            told = "half CPU: it cannot compute SET_ROWS"
            status = await head.until(lambda s: s.model is not None and told in s.model.reason)
            assert model_of(status).state == "waiting"
            answer = await api_of(status).ask("POST", "/completion", generation(PROMPT, 1))
            assert answer.status == 503
            assert told in str(answer.body)
            assert servers_started(half) == 1

    play(check())
