"""A worker lost in every way and state, through the mesh: an error or a pause, no abort, no wrong token.

By whom it is noticed: the worker's daemon sees that its rpc-server is gone, or stands still by a signal, and
ends the lease (one that hangs: test_mesh_hung.py). A connection between the daemons that is reset, or brings
nothing for some seconds, is no loss but a pause: its streams are kept for the grace, and what was held goes
on over the next connection. One that brings nothing for good is told after ten seconds, and ends with the
grace.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
from meshd.fleet.fleet import LocalNode
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e import spaces
from tests.e2e.alone import alone
from tests.e2e.apart import Apart, apart
from tests.e2e.api_client import Streamed, generation
from tests.e2e.freezer import freezer
from tests.e2e.freezer import skip_reason as why_no_freezer
from tests.e2e.losses import HANG_SECONDS, STATES, noted
from tests.e2e.mesh_losses import (
    LASTING,
    LONG_PROMPT,
    POLL_SECONDS,
    TOKENS,
    Scene,
    Texts,
    again_within,
    crashes,
    resumes,
)
from tests.e2e.models import smollm2
from tests.e2e.nodes import PROMPT, SAME_BATCHES, SAME_THREADS, Fleet, api_of, child_pid, model_of, play
from tests.soak import SOAK, counts, drawn

pytestmark = [pytest.mark.native, pytest.mark.timeout(6000)]

TIMES = counts(1, 50)
FIRST = drawn("the moment of a loss", range(50), 1, always=())[0]
SHORT_STATES = 3
SILENT_SECONDS = 6.0  # a link is dead after 4.5 s without a byte
SIGNALS = {"kill -9": signal.SIGKILL, "kill -STOP": signal.SIGSTOP}
SECONDS = 5000.0 if SOAK else 280.0
LINES = ("reset", "silence")
FOUND_SECONDS = 30.0  # a process that hangs, as test_mesh_hung.py has it


def _cases(kinds: Iterable[str]) -> dict[str, tuple[str, Sequence[str]]]:
    """A kind of loss, and in which states one mesh has it: in a soak a mesh for each state."""
    if SOAK:
        return {f"{kind}-{state}": (kind, [state]) for kind, state in product(kinds, STATES)}
    return {kind: (kind, drawn(f"states of {kind}", STATES, SHORT_STATES, always=())) for kind in kinds}


NEEDS_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells that it stands still")
NEEDS_SPACES = pytest.mark.skipif(bool(spaces.skip_reason()), reason=spaces.skip_reason() or "-")


def _texts() -> Texts:
    model = smollm2()
    return Texts(alone(model, TOKENS), alone(model, LASTING), alone(model, TOKENS, LONG_PROMPT))


@asynccontextmanager
async def _with_a_process(
    folder: Path, hit: Callable[[int], object], texts: Texts, *, later: float = 0.0
) -> AsyncIterator[Scene]:
    """The worker's process that is lent is hit, and not told of at once but so many seconds `later`."""
    async with Fleet(folder) as fleet:
        worker = await fleet.worker("worker", model=smollm2())
        token = await worker.token()
        began = time.monotonic()
        head = await fleet.head(smollm2(), *SAME_THREADS, *SAME_BATCHES, token=token)
        api = api_of(await fleet.ready(head))
        assert await api.complete(PROMPT, TOKENS) == texts.short
        within = again_within(began)

        async def lose() -> float:
            pids = [one.pid for one in (await worker.status()).children if one.name == CHILD_NAME]
            if not pids or pids[0] is None:
                raise ProcessLookupError(CHILD_NAME)
            await asyncio.to_thread(hit, pids[0])
            return time.monotonic()

        yield Scene(worker, head, api, texts, lose, goes_on=False, again_within=within + later)


@asynccontextmanager
async def _with_a_line(folder: Path, kind: str, texts: Texts) -> AsyncIterator[Scene]:
    """Something happens to the only connection between the two daemons."""
    async with apart(
        folder,
        smollm2(),
        worker_has=smollm2(),
        options=(*SAME_THREADS, *SAME_BATCHES),
        seed=0,
    ) as place:
        began = time.monotonic()
        await place.fleet.ready(place.head)
        assert await place.api.complete(PROMPT, TOKENS) == texts.short
        within = again_within(began)

        async def reset() -> float:
            for cutter in place.cutters:
                cutter.cut_all()
            return time.monotonic()

        async def silence() -> float:
            await _silent(place, SILENT_SECONDS)
            return time.monotonic()

        lose = reset if kind == "reset" else silence
        yield Scene(
            place.worker,
            place.head,
            place.api,
            texts,
            lose,
            goes_on=True,
            again_within=within,
        )


async def _silent(place: Apart, seconds: float) -> None:
    place.rules.flowing.clear()
    try:
        await asyncio.sleep(seconds)
    finally:
        place.rules.flowing.set()


async def _again_and_again(
    scene: Scene, kind: str, states: Sequence[str], *, told_within: float = HANG_SECONDS
) -> None:
    acts = {
        "load": scene.loading,
        "prompt": scene.prompt,
        "decode": scene.decode,
        "idle": scene.idle,
        "shutdown": scene.shutdown,
    }
    for state, number in product(states, range(FIRST, FIRST + TIMES)):
        crashed, resumed = crashes(scene.head), await resumes(scene.head)
        with noted("mesh", state, kind, told_within=told_within) as loss:
            loss.again_within = scene.again_within
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
@pytest.mark.parametrize(("kind", "states"), _cases(SIGNALS).values(), ids=_cases(SIGNALS))
def test_a_workers_process_is_lost(tmp_path: Path, kind: str, states: Sequence[str]) -> None:
    texts = _texts()

    def hit(pid: int) -> None:
        os.kill(pid, SIGNALS[kind])

    async def check() -> None:
        async with _with_a_process(tmp_path, hit, texts) as scene:
            await _again_and_again(scene, kind, states)

    play(check(), seconds=SECONDS)


@pytest.mark.skipif(bool(why_no_freezer()), reason=why_no_freezer() or "-")
@pytest.mark.parametrize("state", drawn("the state of a frozen worker", STATES, 1, always=()))
def test_the_kernel_freezes_a_workers_process(tmp_path: Path, state: str) -> None:
    """No thread of it runs, and its state says neither stopped nor traced: only requests that wait tell."""
    texts = _texts()

    async def check() -> None:
        with freezer() as cold:

            def hit(pid: int) -> None:
                cold.thaw()  # those before have ended
                cold.freeze(pid)

            async with _with_a_process(tmp_path, hit, texts, later=FOUND_SECONDS) as scene:
                await _again_and_again(scene, "frozen", [state], told_within=FOUND_SECONDS)

    play(check(), seconds=SECONDS)


@NEEDS_SPACES
@pytest.mark.parametrize(("kind", "states"), _cases(LINES).values(), ids=_cases(LINES))
def test_the_line_to_a_worker_is_lost(tmp_path: Path, kind: str, states: Sequence[str]) -> None:
    texts = _texts()

    async def check() -> None:
        async with _with_a_line(tmp_path, kind, texts) as scene:
            await _again_and_again(scene, kind, states)

    play(check(), seconds=SECONDS)


GRACE = 120 if SOAK else 25
# 4.5 s until a link is dead, 10 s until that is reported, 1 s between looks; the rest is for a busy machine
TOLD_SECONDS = 15.5 if SOAK else 20.0
REFUSED_SECONDS = 6.0  # who waits in line waits for the end of the grace


async def _one_who_asks_now(place: Apart) -> None:
    """Is refused, with the reason, and does not wait in line."""
    asked = time.monotonic()
    refused = await place.api.ask("POST", "/completion", generation(PROMPT, 1))
    assert time.monotonic() - asked < REFUSED_SECONDS, "it waited in line"
    assert refused.status == 503
    assert refused.retry_after
    assert "no connection to worker worker for " in str(refused.body["error"])
    health = await place.api.ask("GET", "/health")
    assert (health.status, health.body["status"]) == (503, "degraded")
    assert model_of(await place.head.status()).state == "degraded"


async def _silenced(place: Apart, tokens: int) -> tuple[asyncio.Task[Streamed], Streamed]:
    """An answer under way, and from its tenth piece on a line that brings nothing any more."""
    loop, ten, so_far = asyncio.get_running_loop(), asyncio.Event(), Streamed()

    def on_piece(streamed: Streamed) -> None:
        so_far.comments = streamed.comments
        if streamed.pieces == 10:
            loop.call_soon_threadsafe(ten.set)

    answer = asyncio.create_task(place.api.stream(PROMPT, tokens, on_piece=on_piece))
    await ten.wait()
    place.rules.flowing.clear()
    return answer, so_far


@NEEDS_SPACES
def test_a_line_that_is_silent_for_good_is_told_and_then_an_error(tmp_path: Path) -> None:
    """Nothing is closed and nothing comes: each side only misses the other."""
    reference = alone(smollm2(), TOKENS)
    options = ("--grace", str(GRACE), *SAME_THREADS)

    async def check() -> None:
        async with apart(tmp_path, smollm2(), worker_has=smollm2(), options=options, seed=0) as place:
            await place.fleet.ready(place.head)
            with noted("mesh", "decode", "silent", told_within=TOLD_SECONDS) as loss:
                answer, _ = await _silenced(place, 400)
                began = time.monotonic()
                await place.head.until(lambda status: model_of(status).state == "degraded")
                loss.since(began)
                await _one_who_asks_now(place)
                streamed = await answer
                assert f"worker worker is lost: no link for {GRACE} s" in streamed.error
                assert "upstream_lost" in streamed.error
                assert not streamed.done
                assert any("no connection to worker worker for 1" in said for said in streamed.comments)
                place.rules.flowing.set()
                text, _ = await place.api.complete_through_503(PROMPT, TOKENS, seconds=60.0)
                loss.wrong = text != reference
                loss.again = time.monotonic() - began
            assert crashes(place.head) == 0

    play(check(), seconds=400.0 if SOAK else 280.0)


@NEEDS_SPACES
def test_a_line_that_comes_back_after_ten_seconds_needs_no_load(tmp_path: Path) -> None:
    reference = alone(smollm2(), 200)

    async def check() -> None:
        async with apart(tmp_path, smollm2(), worker_has=smollm2(), options=SAME_THREADS, seed=0) as place:
            server = child_pid(await place.fleet.ready(place.head), "llama-server")
            answer, so_far = await _silenced(place, 200)
            await place.head.until(lambda status: model_of(status).state == "degraded")
            while not so_far.comments:  # noqa: ASYNC110 - a thread gets them
                await asyncio.sleep(POLL_SECONDS)
            await _one_who_asks_now(place)
            place.rules.flowing.set()
            streamed = await answer
            assert (streamed.text, streamed.error) == (reference, "")
            assert any("no connection to worker worker for 1" in said for said in streamed.comments)
            after = await place.head.status()
            assert model_of(after).state == "ready"
            assert child_pid(after, "llama-server") == server

    play(check())
