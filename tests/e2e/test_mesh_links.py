"""An answer of a real model through each kind of link."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.status import Status

from tests.e2e.alone import alone
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, peer_of, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 32


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a running `meshd relay`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meshd", "relay", "--listen", "127.0.0.1:0"],
        env={"MESHD_HOME": str(tmp_path_factory.mktemp("relay")), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.mark.parametrize(
    ("kinds", "kind", "path"),
    [
        ("tcp", "tcp", "loopback"),
        ("quic", "quic", "loopback"),
        ("relay", "relay", "relayed"),
        ("relay,webrtc", "webrtc", "loopback"),  # offers go through the relay
    ],
)
def test_an_answer_through(tmp_path: Path, relay: str, kinds: str, kind: str, path: str) -> None:
    reference = alone(smollm2(), TOKENS)

    def by_that_way(status: Status) -> bool:
        link = peer_of(status, "worker").link
        return link is not None and (link.kind, link.path) == (kind, path)

    async def check() -> None:
        links = ("--links", kinds, "--relay", relay, "--stun", "none")
        async with Fleet(tmp_path) as fleet:
            worker = await fleet.worker("worker", *links, model=smollm2())
            head = await fleet.head(smollm2(), *links, *SAME_THREADS, token=await worker.token())
            status = await fleet.ready(head)
            await head.until(by_that_way)
            before = peer_of(await head.status(), "worker").link
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            after = peer_of(await head.status(), "worker").link
            assert before is not None
            assert after is not None
            assert (after.kind, after.path) == (kind, path)
            assert after.received_bytes > before.received_bytes

    play(check())
