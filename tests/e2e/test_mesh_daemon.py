"""Daemons with an unmodified llama-server, mesh-servers, and meshd's links between."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.base.byte_format import in_bytes
from meshd.bench.llama import arguments_of
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e import spaces
from tests.e2e.alone import alone
from tests.e2e.apart import apart
from tests.e2e.api_client import Streamed
from tests.e2e.mesh_losses import AGAIN_SECONDS, hit_in_mid_answer
from tests.e2e.models import own_cache, smollm2, stock_text
from tests.e2e.nodes import PROMPT, SAME_THREADS, THREADS, Fleet, api_of, child_pid, model_of, play
from tests.e2e.random_models import random_model
from tests.soak import SEED

pytestmark = [
    pytest.mark.native,
    pytest.mark.timeout(3000),
]


HEADLESS = ("--device", "none", "--set", "serve.output=head")  # the worker has the layers and nothing else
TOKENS = 48
OUTAGE_SECONDS = 3
WIDTH = 576 * 4  # bytes of an activation of SmolLM2-135M
WEIGHTS = 66_495_744  # bytes of its layers
BEFORE = 2_000_000  # bytes that cross while it is loaded: graphs, and the index by content


def crossed(status: Status) -> dict[str, int]:
    """Bytes on the connections of llama-server, or of a worker's mesh-server to others, by peer."""
    return {one.peer_name: one.sent_bytes + one.received_bytes for one in status.tunnels}


def test_one_worker_has_its_weights_and_the_text_is_that_of_one_machine(tmp_path: Path) -> None:
    """Then it is lost in the middle of an answer, and the model is back."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, [worker] = await fleet.workers(smollm2())
            head = await fleet.head(smollm2(), *HEADLESS, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            model, api = model_of(status), api_of(status)
            assert (model.weights_network_bytes, model.weights_local_bytes) == (0, WEIGHTS)
            assert crossed(status)["worker-0"] < BEFORE
            log = (worker.spec.home / "logs" / "meshd.log").read_text()
            assert "weights_loaded" in log and f"bytes='{in_bytes(WEIGHTS)}'" in log, (
                "told while the model loads"
            )
            assert await api.complete(PROMPT, TOKENS) == reference
            pid = child_pid(await worker.status(), CHILD_NAME)
            streamed, left = await hit_in_mid_answer(api, pid, signal.SIGKILL, within=AGAIN_SECONDS)
            assert "worker-0" in streamed.error
            assert not streamed.done
            text, _ = await api.complete_through_503(PROMPT, TOKENS, seconds=left)
            assert text == reference

    play(check())


def test_two_workers_push_to_each_other(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            compressed = ("--set", "links.compress=on")
            token, workers = await fleet.workers(smollm2(), smollm2(), options=compressed)
            options = ("--device", "none", "--min-workers", "2", *SAME_THREADS)
            head = await fleet.head(smollm2(), *compressed, *options, token=token)
            status = await fleet.ready(head)
            assert model_of(status).weights_network_bytes == 0
            pushes = {part.node: (part.push, part.why_no_push) for part in model_of(status).split}
            assert pushes["worker-1"] == (True, "")
            assert "micro batches of 128 tokens: fastest for 2 CPUs" in model_of(status).split_why
            assert "-ub 128" in " ".join(arguments_of(child_pid(status, "llama-server")))
            before = crossed(await workers[0].status())["worker-1"]
            head_before = crossed(await head.status())
            assert await api_of(status).complete(PROMPT, TOKENS) == reference
            assert crossed(await workers[0].status())["worker-1"] - before >= TOKENS * WIDTH
            to_first = crossed(await head.status())["worker-0"] - head_before["worker-0"]
            print(f"{to_first} bytes between head and worker-0 for {TOKENS} tokens")  # noqa: T201
            os.kill(child_pid(await workers[1].status(), CHILD_NAME), signal.SIGKILL)
            text, _ = await api_of(status).complete_through_503(PROMPT, TOKENS, seconds=AGAIN_SECONDS)
            assert text == reference

    play(check())


def test_a_windowed_model_needs_no_checkpoints_and_answers_like_one_machine(tmp_path: Path) -> None:
    """A prompt many times as long as its windows, which keep the whole context; one machine's are short.

    What is computed at once rounds otherwise than it does apart: both have the same micro batches, which the
    plan would choose by the time that a message takes.
    """
    model, prompt = random_model("gemma3"), "one, two, three, " * 100
    same = ("-c", "8192", "-t", str(THREADS), "-ub", "128", "-ctxcp", "0")
    reference = stock_text(model, TOKENS, prompt, same)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, _ = await fleet.workers(model, model)
            # of several slots the first token has one, whose cells another one's last bits depend on
            options = ("--device", "none", "--min-workers", "2", *SAME_THREADS, "-np", "1", "-ub", "128")
            head = await fleet.head(model, *options, token=token)
            status = await fleet.ready(head)
            assert "--swa-full" in arguments_of(child_pid(status, "llama-server"))
            assert await api_of(status).complete(prompt, TOKENS) == reference

    play(check())


def test_what_was_sent_is_kept_for_the_load_after_a_loss(tmp_path: Path) -> None:
    """A worker without the file, whose mesh-server is suspended in the middle of an answer."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path, cache=own_cache(tmp_path)) as fleet:
            token, [worker] = await fleet.workers(None)
            head = await fleet.head(smollm2(), *HEADLESS, *SAME_THREADS, token=token)
            status = await fleet.ready(head)
            assert model_of(status).weights_network_bytes == WEIGHTS
            assert crossed(status)["worker-0"] > WEIGHTS
            pid = child_pid(await worker.status(), CHILD_NAME)
            api = api_of(status)
            streamed, left = await hit_in_mid_answer(api, pid, signal.SIGSTOP, within=AGAIN_SECONDS)
            assert "suspended" in streamed.error
            text, _ = await api.complete_through_503(PROMPT, TOKENS, seconds=left)
            assert text == reference
            status = await fleet.ready(head)
            assert (model_of(status).weights_network_bytes, model_of(status).weights_local_bytes) == (
                0,
                WEIGHTS,
            )
            assert crossed(status)["worker-0"] < BEFORE

    play(check())


@pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-")
def test_links_that_are_cut_and_an_outage_are_a_pause(tmp_path: Path) -> None:
    """Of less than the 20 s after which llama-server takes a silent worker for hung."""
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with apart(
            tmp_path,
            smollm2(),
            worker_has=smollm2(),
            options=("--device", "none", *SAME_THREADS),
            seed=SEED,
        ) as place:
            server = child_pid(await place.fleet.ready(place.head), "llama-server")
            place.rules.cutting = True
            for cutter in place.cutters:
                cutter.cut_all()  # those of now were made without a cut to come
            loop, third = asyncio.get_running_loop(), asyncio.Event()

            def on_piece(streamed: Streamed) -> None:
                if streamed.pieces >= TOKENS // 3:
                    loop.call_soon_threadsafe(third.set)

            answer = asyncio.ensure_future(place.api.stream(PROMPT, TOKENS, on_piece=on_piece))
            await third.wait()
            place.begin_outage()
            await asyncio.sleep(OUTAGE_SECONDS)
            place.rules.outage = False
            streamed = await answer
            place.rules.cutting = False
            assert (streamed.error, streamed.text) == ("", reference)
            assert place.counts.cuts > 0 and place.counts.refused > 0
            assert child_pid(await place.head.status(), "llama-server") == server

    play(check())
