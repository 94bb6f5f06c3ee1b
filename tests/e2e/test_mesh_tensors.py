"""`--split tensor` over real daemons: two workers compute each layer together."""

import asyncio
import json
import os
import signal
import tempfile
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.build.interface import LLAMA_SERVER
from meshd.fleet.fleet import LocalNode
from meshd.model.status import ModelState
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.api_client import Api, generation
from tests.e2e.models import smollm2, stock
from tests.e2e.native_rig import Head
from tests.e2e.near_answers import WANTED, Tokens, check_near
from tests.e2e.nodes import (
    LOCALLY,
    PROMPT,
    SAME_THREADS,
    THREADS,
    Fleet,
    api_of,
    child_pid,
    model_of,
    peer_of,
    play,
)
from tests.e2e.open_answers import COPY

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]

TOKENS = 32
COPIED_TOKENS = 96
NEAR_HALVED = 0.3  # two tokens that are 0.26 apart change places; logprobs are up to 0.04 from one process
SUMS, VALUES = 60, 576  # of a token of SmolLM2, and in each of them
BY_TENSORS = ("--split", "tensor", "--min-workers", "2", "--ctx-size", "2048")


def _alone() -> Tokens:
    """Return what one process answers, without a mesh."""
    extra = ("-c", "2048", "-t", str(THREADS), "-fa", "on")
    with (
        tempfile.TemporaryDirectory() as folder,
        Head(stock().binaries[LLAMA_SERVER], Path(folder), smollm2(), [], extra=extra) as head,
    ):
        body = generation(PROMPT, TOKENS) | WANTED
        status, answer = head.request("POST", "/completion", json.dumps(body).encode())
    assert status == 200, answer
    found: Tokens = json.loads(answer)["completion_probabilities"]
    return found


async def _answer(api: Api) -> Tokens:
    answer = await api.ask("POST", "/completion", generation(PROMPT, TOKENS) | WANTED)
    assert answer.status == 200, answer
    found = answer.body["completion_probabilities"]
    assert isinstance(found, list)
    return found


async def _between(worker: LocalNode) -> int:
    """Count the bytes that this worker's daemon had from that of the other one."""
    link = peer_of(await worker.status(), "worker-1").link
    return 0 if link is None else link.received_bytes


def _has_split(status: Status, why: str) -> bool:
    model = status.model
    return model is not None and model.state is ModelState.READY and why in model.split_why


async def _log_of(node: LocalNode) -> str:
    return await asyncio.to_thread((node.spec.home / "logs" / "meshd.log").read_text)


@pytest.mark.parametrize("activations", ["f32", "f16"])
@pytest.mark.parametrize("way", ["past the daemons", "through the daemons"])
def test_two_workers_answer_nearly_as_one_machine(tmp_path: Path, way: str, activations: str) -> None:
    """In f16, half the bytes of a sum cross."""
    alone = _alone()
    options = LOCALLY if way == "past the daemons" else ()
    halved = ("--set", "serve.activations=f16") if activations == "f16" else ()

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2(), options=options)
            head = await fleet.head(smollm2(), *BY_TENSORS, *halved, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            # Each has half of every layer, and a way to the other one.
            model = model_of(status)
            assert "each layer on `worker-0` and `worker-1`" in model.split_why
            assert [(part.node, part.layers) for part in model.split if part.layers] == [
                ("worker-0", 15),
                ("worker-1", 15),
            ]
            assert "push_direct" in await _log_of(head)
            assert {one.listen for one in (await workers[0].status()).tunnels} == {
                "local" if options else "socketpair"
            }
            # The weights came from each worker's own file.
            for worker in workers:
                link = peer_of(await worker.status(), "head").link
                assert link is not None
                assert link.received_bytes < smollm2().stat().st_size / 50
            # The answer is that of one process, as far as another order of adding lets it.
            before = await _between(workers[0])
            answer = await _answer(api_of(status))
            if halved:
                check_near(answer, alone, near=NEAR_HALVED, least=5)
            else:
                check_near(answer, alone)
            assert await _answer(api_of(status)) == answer
            if way == "through the daemons":
                crossed = (await _between(workers[0]) - before) / (2 * TOKENS * SUMS * VALUES)
                assert (3.9 if activations == "f32" else 1.9) < crossed < (6 if activations == "f32" else 3)

    play(check())


@pytest.mark.parametrize(("shares", "layers"), [("2,1", [20, 10]), ("2,1,1", [15, 8, 7])])
def test_workers_have_the_shares_that_were_asked_for(tmp_path: Path, shares: str, layers: list[int]) -> None:
    """Compare two workers and three, whose sums then cross three daemons."""
    alone = _alone()

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _workers = await fleet.workers(*[smollm2()] * len(layers))
            options = (*BY_TENSORS, "--min-workers", str(len(layers)), "--tensor-split", shares)
            head = await fleet.head(smollm2(), *options, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert "each layer on" in model_of(status).split_why
            parts = [part for part in model_of(status).split if part.layers]
            assert [(part.node, part.layers) for part in parts] == [
                (f"worker-{number}", count) for number, count in enumerate(layers)
            ]
            assert parts[0].bytes > 1.3 * parts[-1].bytes  # each has the vocabulary, too
            check_near(await _answer(api_of(status)), alone)

    play(check())


def test_repeated_tokens_are_drafted_and_the_text_is_that_without_drafts(tmp_path: Path) -> None:
    copy = generation(COPY, COPIED_TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _workers = await fleet.workers(smollm2(), smollm2(), options=LOCALLY)
            without = await fleet.head(smollm2(), *BY_TENSORS, *SAME_THREADS, token=token, name="without")
            answer = await api_of(await fleet.ready(without)).ask("POST", "/completion", copy)
            await without.stop()
            fleet.forget(without)
            drafting = (*BY_TENSORS, "--speculate", "auto", *SAME_THREADS)
            head = await fleet.head(smollm2(), *drafting, token=token)
            status = await fleet.ready(head)
            assert "each layer on `worker-0` and `worker-1`" in model_of(status).split_why
            drafted = await api_of(status).ask("POST", "/completion", copy)
            assert (drafted.status, drafted.body["content"]) == (200, answer.body["content"])
            found = model_of(await head.status()).speculation
            assert found is not None and found.free > 0 and found.model == 0
            assert found.drafted >= found.accepted > 0

    play(check())


def test_a_worker_lost_while_nobody_asks_is_in_the_next_run_which_is_by_tensors(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2(), options=LOCALLY)
            options = ("--split", "tensor", "--ctx-size", "2048")
            head = await fleet.head(smollm2(), *options, *SAME_THREADS, token=token)
            status = await head.until(lambda now: _has_split(now, "each layer on"))
            server = child_pid(status, LLAMA_SERVER)
            os.kill(child_pid(await workers[1].status(), CHILD_NAME), signal.SIGKILL)
            text, _seconds = await api_of(status).complete_through_503(PROMPT, TOKENS, seconds=120)
            assert text
            status = await head.status()
            assert "each layer on `worker-0` and `worker-1`" in model_of(status).split_why
            assert child_pid(status, LLAMA_SERVER) != server

    play(check())
