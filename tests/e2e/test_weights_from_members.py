"""Weights that workers lack come from all members that have them, before the load: over real daemons."""

import asyncio
import os
import re
import signal
from collections import Counter
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.node import LocalNode, model_ready
from meshd.model.piece_index import PIECE_BYTES

from tests.e2e.alone import alone
from tests.e2e.homes import Homes, connected
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, child_pid, model_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

TOKENS = 16
MB = 1_000_000
ON_WORKERS = ("--device", "none", "--output-on", "head")  # workers have all layers


def fetched(node: LocalNode) -> dict[str, Counter[str]]:
    """By worker, the megabytes that it had from each member, as the head's log says."""
    found: dict[str, Counter[str]] = {}
    for line in (node.spec.home / "node.log").read_text().splitlines():
        if "worker_fetched" in line and (worker := re.search(r"name=(\S+)", line)):
            parts = re.findall(r"([0-9.]+) MB from ([\w-]+)", line)
            found.setdefault(worker[1], Counter()).update({name: float(count) for count, name in parts})
    return found


async def takers(homes: Homes, *names: str, token: str) -> list[LocalNode]:
    """Workers without a model."""
    return [await homes.start(name, token=token) for name in names]


async def loaded_anew(head: LocalNode, before: Status) -> Status:
    """The status after llama-server has ended and another one is ready."""
    server = child_pid(before, "llama-server")
    os.kill(server, signal.SIGKILL)
    return await head.until(
        lambda s: model_ready(s) and any(child.pid not in (None, server) for child in s.children)
    )


def test_three_workers_fetch_their_parts_from_two_holders(tmp_path: Path) -> None:
    """The head and another member; only what each needs; and the next load takes nothing."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            homes.has("one", smollm2())
            one = await homes.start("one")
            token = await one.token()
            await takers(homes, "a", "b", "c", token=token)
            await connected(one, 3)
            head = await homes.serve(
                "head", smollm2(), *ON_WORKERS, "--workers", "a,b,c", "--min-workers", "3", *SAME_THREADS, token=token
            )
            first = await fleet.ready(head)
            gave = fetched(head)
            print(gave)
            assert gave.keys() == {"a", "b", "c"}
            assert sum(gave.values(), Counter()).keys() == {"one", "head"}, gave
            assert model_of(first).weights_network_bytes == 0
            sizes = [load.total_bytes for load in model_of(first).workers]
            for load in model_of(first).workers:
                taken = sum(gave[load.node].values()) * MB
                assert taken < load.total_bytes + 4 * PIECE_BYTES, "only what it needs, in whole pieces"
            assert sum(load.local_bytes for load in model_of(first).workers) > 60 * MB, sizes
            assert await api_of(first).complete(PROMPT, TOKENS) == reference
            second = await loaded_anew(head, first)
            assert model_of(second).weights_network_bytes == 0
            assert fetched(head) == gave, "nothing was fetched again"

    play(check())
