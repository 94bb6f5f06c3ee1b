"""A standby worker holds the weights while others compute, and takes the place of one that is lost."""

import asyncio
import sys
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode, model_ready
from meshd.model.status import StandbyStatus

from tests.e2e.alone import alone
from tests.e2e.homes import Homes, connected
from tests.e2e.models import copy_to, smollm2
from tests.e2e.nodes import PROMPT, SAME_BATCHES, SAME_THREADS, Fleet, api_of, cli, model_of, play
from tests.e2e.open_answers import answers_under
from tests.e2e.residency import drop, resident_bytes
from tests.e2e.test_mesh_continued import TOKENS, kill

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

MB = 1_000_000
ON_WORKERS = ("--device", "none", "--set", "serve.output=head", "--min-workers", "2")
GOES_ON = ("--set", "serve.continue_answers=200", "--grace", "10")
HELD = "for the loss of any worker"


def nodes(status: Status) -> set[str]:
    """Return the nodes that compute."""
    return {part.node for part in model_of(status).split if part.layers}


def standby(status: Status) -> StandbyStatus:
    [one] = model_of(status).standby
    return one


async def held(head: LocalNode) -> Status:
    return await head.until(lambda s: model_ready(s) and standby(s).ready)


async def has_hashed(worker: LocalNode) -> None:
    """It reads its file no more until it has to."""
    while "weights_known" not in (worker.spec.home / "node.log").read_text():  # noqa: ASYNC110 - another's log
        await asyncio.sleep(0.02)


def killed(fleet: Fleet, node: LocalNode) -> int:
    """The process to kill of a node that is to be lost."""
    assert node.pid is not None
    fleet.forget(node)
    return node.pid


def test_it_takes_the_place_of_a_lost_worker_and_gives_it_back(tmp_path: Path) -> None:
    text = alone(smollm2(), TOKENS)
    copy = copy_to(smollm2(), tmp_path, "standby.gguf")

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            token, workers = await fleet.workers(smollm2(), smollm2(), copy)
            await connected(workers[0], 2)
            await has_hashed(workers[2])
            drop(copy)
            options = (*ON_WORKERS, *GOES_ON, "--standby", "worker-2", *SAME_THREADS, *SAME_BATCHES)
            head = await fleet.head(smollm2(), *options, token=token)
            status = await held(head)
            assert nodes(status) == {"worker-0", "worker-1"}
            size = standby(status).held_bytes
            assert standby(status) == StandbyStatus("worker-2", True, size, size, HELD) and size > 90 * MB
            if sys.platform == "linux":
                size = copy.stat().st_size
                assert resident_bytes(copy, [(size - 90 * MB, 90 * MB)]) > 89 * MB
            assert not (await workers[2].status()).children, "it has no process"
            said = (await cli(head.spec.home, "status")).stdout
            assert "standby worker-2: 9" in said and f"of weights held ready: {HELD}" in said

            (streamed,), (stood,) = await answers_under(
                api_of(status), kill(killed(fleet, workers[0])), [PROMPT], TOKENS
            )
            assert (streamed.error, streamed.text) == ("", text)
            status = await head.until(lambda s: model_ready(s) and "worker-0" not in nodes(s))
            assert nodes(status) == {"worker-1", "worker-2"}
            assert model_of(status).weights_network_bytes == 0
            assert standby(status).why == "it takes the place of another worker"
            print(f"went on after {stood:.1f} s, loaded in {model_of(status).load_seconds} s")  # noqa: T201

            await fleet.start(workers[0].spec)
            status = await head.until(
                lambda s: model_ready(s) and "worker-0" in nodes(s) and standby(s).ready
            )
            assert nodes(status) == {"worker-0", "worker-1"}
            assert await api_of(status).complete(PROMPT, TOKENS) == text

    play(check())


def test_one_without_the_model_has_all_of_it_before_a_loss(tmp_path: Path) -> None:
    """Where the fastest split is chosen: its speed is measured before, too."""
    text = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            homes = Homes(fleet, tmp_path)
            files = {name: homes.has(name, smollm2()) for name in ("a", "b")}
            first = await homes.start("a", "--model", str(files["a"]))
            token = await first.token()
            await homes.start("b", "--model", str(files["b"]), token=token)
            await homes.start("barn", token=token)
            await connected(first, 2)
            chosen = ("--standby", "barn", "--split", "auto")
            options = (*ON_WORKERS, *GOES_ON, *chosen, *SAME_THREADS, *SAME_BATCHES)
            head = await homes.serve("head", smollm2(), *options, token=token)
            status = await held(head)
            assert nodes(status) == {"a", "b"} and model_of(status).weights_network_bytes == 0
            (streamed,), _ = await answers_under(api_of(status), kill(killed(fleet, first)), [PROMPT], TOKENS)
            assert (streamed.error, streamed.text) == ("", text)
            status = await head.until(lambda s: model_ready(s) and "a" not in nodes(s))
            assert nodes(status) == {"b", "barn"}
            assert model_of(status).weights_network_bytes == 0

    play(check())
