"""Little on the wire: a long prompt and a load through compressed tunnels, beside stock; in bytes."""

from pathlib import Path

import pytest
from meshd.admin.status import Status

from tests.e2e.alone import alone
from tests.e2e.crossed import CONTEXT, PROMPT_TOKENS, WIDTH, prompt_bytes, stock_bytes
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, Fleet, api_of, play
from tests.soak import drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

GRAPH_BYTES = 330_000  # of a token of SmolLM2; a load sends that of the first one
CONTROL_BYTES = 100_000  # of a load and its first token, most, beside a graph or with it compressed
MOST = 1 / 3  # of stock's bytes


def _crossed(status: Status) -> int:
    return sum(peer.link.sent_bytes + peer.link.received_bytes for peer in status.peers if peer.link)


@pytest.mark.parametrize("count", drawn("workers of a long prompt", [1, 2, 3], 1, always=()))
def test_a_long_prompt_crosses_with_a_third_of_stocks_bytes(tmp_path: Path, count: int) -> None:
    """Over all links of the mesh together; from worker to worker it goes directly, and compressed as well."""
    theirs = stock_bytes(tmp_path, count)
    reference = alone(smollm2(), 48)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(*[smollm2()] * count)
            given = ("--min-workers", str(count), "--device", "none", "--ctx-size", str(CONTEXT))
            head = await fleet.head(
                smollm2(), *given, "--set", "links.compress=on", *SAME_THREADS, token=token
            )
            status = await fleet.ready(head)
            crossed = await prompt_bytes([head, *workers])
            ours = sum(crossed.values())
            print(f"{ours} of {theirs} bytes: {ours / theirs:.3f}")  # noqa: T201
            assert ours <= MOST * theirs, crossed
            for number in range(1, count):
                between = crossed[f"worker-{number - 1}", f"worker-{number}"]
                assert PROMPT_TOKENS * WIDTH / 2 < between < 0.95 * PROMPT_TOKENS * WIDTH, crossed
            assert await api_of(status).complete(PROMPT, 48) == reference

    play(check())


def test_a_load_crosses_in_less_than_its_graph(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2())
            given = ("--device", "none", "--ctx-size", str(CONTEXT))
            crossed = {}
            for when in ("on", "off", "auto"):
                head = await fleet.head(
                    smollm2(),
                    *given,
                    "--set",
                    f"links.compress={when}",
                    *SAME_THREADS,
                    token=token,
                    name=f"head-{when}",
                )
                crossed[when] = _crossed(await fleet.ready(head))
                await head.stop()
                fleet.forget(head)
            assert crossed["off"] > GRAPH_BYTES
            assert crossed["auto"] > GRAPH_BYTES, "they are on one machine"
            assert crossed["on"] < CONTROL_BYTES + crossed["off"] / 4, crossed

    play(check())


def test_nothing_is_compressed_by_a_worker_that_will_not(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(smollm2(), options=("--set", "links.compress=off"))
            given = ("--device", "none", "--ctx-size", str(CONTEXT), "--set", "links.compress=on")
            head = await fleet.head(smollm2(), *given, *SAME_THREADS, token=token)
            assert _crossed(await fleet.ready(head)) > GRAPH_BYTES

    play(check())
