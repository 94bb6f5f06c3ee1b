"""Little on the wire: a long prompt and a load through compressed tunnels, beside stock; in bytes."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from meshd.admin.api import Status
from meshd.bench.llama import measure
from meshd.build.interface import LLAMA_SERVER, RPC_SERVER
from meshd.fleet.node import LocalNode

from tests.e2e.alone import alone
from tests.e2e.counting_proxy import CountingProxy
from tests.e2e.models import cache_folder, patched, smollm2, stock
from tests.e2e.native_rig import Head, Worker
from tests.e2e.nodes import PROMPT, SAME_THREADS, TEST_SECONDS, Fleet, api_of, model_of, play
from tests.e2e.spaces import why_not

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

PROMPT_TOKENS = 1600
TOKENS = [1000 + (n * 7919) % 20000 for n in range(PROMPT_TOKENS)]  # as `measure` asks: none twice
CONTEXT = 2048
GRAPH_BYTES = 384_000  # of SmolLM2, of which a load sends one
CONTROL_BYTES = 100_000  # of a load, most


def _stock_bytes(folder: Path, count: int) -> int:
    """What the prompt costs between a stock head and its stock workers."""
    binaries = stock().binaries
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(binaries[RPC_SERVER], folder, stock=True)) for _ in range(count)
        ]
        proxies = [stack.enter_context(CountingProxy(worker.port)) for worker in workers]
        endpoints = [proxy.endpoint for proxy in proxies]
        extra = ("-c", str(CONTEXT))
        head = stack.enter_context(
            Head(binaries[LLAMA_SERVER], folder, smollm2(), endpoints, load_mode="auto", extra=extra)
        )

        def crossed() -> int:
            return sum(proxy.counts.received + proxy.counts.sent.total() for proxy in proxies)

        head.complete(PROMPT, 4)
        before = crossed()
        head.complete(TOKENS, 1)
        return crossed() - before


def _crossed(status: Status) -> int:
    return sum(peer.link.sent_bytes + peer.link.received_bytes for peer in status.peers if peer.link)


async def _prompt_bytes(head: LocalNode) -> int:
    place = head.spec.home / "llama.sock"
    await measure(place, prompt_tokens=8, tokens=4)
    before = _crossed(await head.status())
    await measure(place, prompt_tokens=PROMPT_TOKENS, tokens=1)
    return _crossed(await head.status()) - before


# With two workers activations come back to the head and go out again, and they shrink by little.
@pytest.mark.parametrize(("count", "most"), [(1, 1 / 3), (2, 1 / 2)])
def test_a_long_prompt_crosses_with_a_part_of_stocks_bytes(tmp_path: Path, count: int, most: float) -> None:
    theirs = _stock_bytes(tmp_path, count)
    reference = alone(smollm2(), 48)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(*[smollm2()] * count)
            given = ("--min-workers", str(count), "--device", "none", "--ctx-size", str(CONTEXT))
            head = await fleet.head(smollm2(), *given, "--compress", "on", *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            ours = await _prompt_bytes(head)
            assert ours <= most * theirs, f"{ours} of {theirs} bytes: {ours / theirs:.3f}"
            assert await api_of(status).complete(PROMPT, 48) == reference

    play(check())


def test_a_load_crosses_in_less_than_its_graph(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            given = ("--device", "none", "--ctx-size", str(CONTEXT))
            crossed = {}
            for when in ("on", "off"):
                head = await fleet.head(
                    smollm2(), *given, "--compress", when, *SAME_THREADS, token=token, name=f"head-{when}"
                )
                crossed[when] = _crossed(await fleet.ready(head))
                await head.stop()
                fleet.forget(head)
            assert crossed["off"] > 2 * GRAPH_BYTES  # of the load, and of the tokens by which it is tried
            assert crossed["on"] < CONTROL_BYTES + crossed["off"] / 4, crossed

    play(check())


def test_a_stock_worker_takes_it_too(tmp_path: Path) -> None:
    """Its tunnel fills in the weights, behind what decompresses."""
    reference = alone(smollm2(), 48)
    native = ("--native-bin", str(stock().binaries[RPC_SERVER].parent))

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), options=native)
            head = await fleet.head(smollm2(), "--compress", "on", *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert model_of(status).weights_network_bytes == 0
            assert _crossed(status) < GRAPH_BYTES
            assert await api_of(status).complete(PROMPT, 48) == reference

    play(check())


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
def test_the_demo_over_a_distance_is_compressed(tmp_path: Path) -> None:
    """In a process of its own, which goes into a network namespace and stays there."""
    patched()
    smollm2()
    done = subprocess.run(
        [sys.executable, "-m", "meshd", "demo", "--latency", "30"],
        env={**os.environ, "MESHD_HOME": str(tmp_path), "MESHD_CACHE": str(cache_folder())},
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = re.search(r"wire +([0-9.]+) kB until loaded", done.stdout)
    assert found is not None, done.stdout
    assert float(found[1]) * 1000 < GRAPH_BYTES


@pytest.mark.parametrize("when", ["auto", "off"])
def test_nothing_is_compressed_on_one_machine_unless_asked_for_nor_by_a_worker_that_will_not(
    tmp_path: Path, when: str
) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), options=("--compress", when))
            asked = "on" if when == "off" else "auto"
            given = ("--device", "none", "--ctx-size", str(CONTEXT), "--compress", asked)
            head = await fleet.head(smollm2(), *given, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert _crossed(status) > 2 * GRAPH_BYTES

    play(check())
