"""`meshd ui` on real nodes: a worker opens a port for the page, a head shows it beside its API."""

import json
from pathlib import Path

import aiohttp
import pytest
from meshd.fleet.fleet import LocalNode

from tests.e2e.models import smollm2
from tests.e2e.nodes import Fleet, api_of, cli, play
from tests.process.console_fake import OURS, next_event

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]


async def shown(node: LocalNode) -> tuple[str, dict[str, object]]:
    """Open the page of a node; return its base URL and the first state."""
    ran = await cli(node.spec.home, "ui", "--print")
    assert ran.returncode == 0, ran.stderr
    link = ran.stdout.strip()
    base = link.partition("/mesh/")[0]
    async with aiohttp.ClientSession() as http:
        async with http.get(link, allow_redirects=False) as answer:
            assert answer.headers["Location"] == "/mesh"
            cookie = answer.headers["Set-Cookie"].partition(";")[0]
        async with http.get(f"{base}/mesh/state", headers={**OURS, "Cookie": cookie}) as state:
            data = (await next_event(state)).partition(b"data: ")[2]
        state.close()
        async with http.get(link, allow_redirects=False) as answer:
            assert answer.headers["Location"] == "/mesh#refused"
    parsed: dict[str, object] = json.loads(data)
    return base, parsed


def test_workers_and_heads_show_the_page(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", model=smollm2())
            status = await worker.until(lambda status: bool(status.devices))
            base, state = await shown(worker)
            assert state["status"]["node"]["id"] == status.node.id  # type: ignore[index]  # JSON
            head = await fleet.head(smollm2(), "--min-workers", "0")
            api = api_of(await fleet.ready(head)).url
            of_head, state = await shown(head)
            assert of_head == api != base
            assert state["status"]["api"]["ready"] is True  # type: ignore[index]  # JSON

    play(scenario())
