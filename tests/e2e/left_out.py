"""A worker that is left out while others serve: what tests of it have in common."""

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, model_ready

from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, child_pid, model_of


def servers_started(node: LocalNode) -> int:
    """For how many leases this worker has started a server."""
    log = node.spec.home / "logs" / "meshd.log"
    return log.read_text().count("lease_granted") if log.exists() else 0


async def with_a_good_one(fleet: Fleet, cache: Path) -> tuple[str, LocalNode]:
    """A good worker, and `half` with the programs of this cache; a token and the second one."""
    good = await fleet.worker("good", model=smollm2())
    token = await good.token()
    half = await fleet.worker("half", model=smollm2(), cache=cache, token=token)
    await good.until(lambda s: any(p.name == "half" and p.state == "connected" for p in s.peers))
    return token, half


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
