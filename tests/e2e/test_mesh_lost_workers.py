"""A worker lost in every way and state, through the mesh: an error or a pause, no abort, no wrong token.

By whom it is noticed: the worker's daemon sees that its rpc-server is gone, or stands still by a signal, and
ends the lease. A connection between the daemons that is reset, or brings nothing any more, is no loss but a
pause: its streams are kept for two minutes, and what was held goes on over the next connection.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.fleet.node import LocalNode

from tests.e2e import spaces
from tests.e2e.alone import alone
from tests.e2e.apart import Apart, apart
from tests.e2e.losses import STATES, noted
from tests.e2e.mesh_losses import LONG_PROMPT, TOKENS, Scene, Texts, crashes, resumes
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_THREADS, SOAK, Fleet, api_of, child_pid, counts, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(6000)]

TIMES = counts(2, 50)
SILENT_SECONDS = 6.0  # a link is dead after 4.5 s without a byte
SIGNALS = {"kill -9": signal.SIGKILL, "kill -STOP": signal.SIGSTOP}
SECONDS = 5000.0 if SOAK else 280.0
NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that it stands still")
NEEDS_SPACES = pytest.mark.skipif(bool(spaces.why_not()), reason=spaces.why_not() or "-")


def _texts() -> Texts:
    return Texts(alone(smollm2(), TOKENS), alone(smollm2(), TOKENS, LONG_PROMPT))


@asynccontextmanager
async def _with_a_process(folder: Path, number: signal.Signals, texts: Texts) -> AsyncIterator[Scene]:
    """The worker's rpc-server gets the signal."""
    async with Fleet(folder) as fleet:
        worker = await fleet.worker("worker", model=smollm2())
        token = await worker.token()
        head = await fleet.head(smollm2(), *SAME_THREADS, token=token)
        api = api_of(await fleet.ready(head))

        async def lose() -> float:
            os.kill(child_pid(await worker.status(), "rpc-server"), number)
            return time.monotonic()

        yield Scene(worker, head, api, texts, lose, goes_on=False)


@asynccontextmanager
async def _with_a_line(folder: Path, kind: str, texts: Texts) -> AsyncIterator[Scene]:
    """Something happens to the only connection between the two daemons."""
    async with apart(folder, smollm2(), worker_has=smollm2(), options=SAME_THREADS, seed=0) as place:
        await place.fleet.ready(place.head)

        async def reset() -> float:
            for cutter in place.cutters:
                cutter.cut_all()
            return time.monotonic()

        async def silence() -> float:
            await _silent(place, SILENT_SECONDS)
            return time.monotonic()

        lose = reset if kind == "reset" else silence
        yield Scene(place.worker, place.head, place.api, texts, lose, goes_on=True)


async def _silent(place: Apart, seconds: float) -> None:
    place.rules.flowing.clear()
    try:
        await asyncio.sleep(seconds)
    finally:
        place.rules.flowing.set()


async def _again_and_again(scene: Scene, kind: str, state: str) -> None:
    acts = {
        "load": scene.loading,
        "prompt": scene.prompt,
        "decode": scene.decode,
        "idle": scene.idle,
        "shutdown": scene.shutdown,
    }
    for number in range(TIMES):
        crashed, resumed = crashes(scene.head), await resumes(scene.head)
        with noted("mesh", state, kind) as loss:
            await acts[state](number, loss)
            loss.aborted = crashes(scene.head) > crashed
        if state == "shutdown":
            await _starts_again(scene.head, scene)
        elif scene.goes_on:
            assert await resumes(scene.head) > resumed, "the line was not lost at all"


async def _starts_again(head: LocalNode, scene: Scene) -> None:
    await head.start()
    status = await head.until(lambda status: status.model is not None and status.model.state == "ready")
    assert status.api is not None
    if not scene.goes_on:  # its port is free to choose
        scene.api = api_of(status)


@NEEDS_LINUX
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", SIGNALS)
def test_a_workers_process_is_lost(tmp_path: Path, kind: str, state: str) -> None:
    texts = _texts()

    async def check() -> None:
        async with _with_a_process(tmp_path, SIGNALS[kind], texts) as scene:
            await _again_and_again(scene, kind, state)

    play(check(), seconds=SECONDS)


@NEEDS_SPACES
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("kind", ["reset", "silence"])
def test_the_line_to_a_worker_is_lost(tmp_path: Path, kind: str, state: str) -> None:
    texts = _texts()

    async def check() -> None:
        async with _with_a_line(tmp_path, kind, texts) as scene:
            await _again_and_again(scene, kind, state)

    play(check(), seconds=SECONDS)


@NEEDS_SPACES
@pytest.mark.skipif(not SOAK, reason="two minutes of silence: MESHD_SOAK=1")
def test_a_line_that_is_silent_for_good_is_an_error_after_two_minutes(tmp_path: Path) -> None:
    reference = alone(smollm2(), TOKENS)

    async def check() -> None:
        async with apart(tmp_path, smollm2(), worker_has=smollm2(), options=SAME_THREADS, seed=0) as place:
            await place.fleet.ready(place.head)
            answer = asyncio.ensure_future(place.api.stream(PROMPT, TOKENS))
            place.rules.flowing.clear()
            streamed = await answer
            assert reference.startswith(streamed.text)
            assert streamed.error
            place.rules.flowing.set()
            text, _ = await place.api.complete_through_503(PROMPT, TOKENS, seconds=60.0)
            assert text == reference
            assert crashes(place.head) == 0

    play(check(), seconds=400.0)
