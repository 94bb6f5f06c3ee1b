"""When llama-server is held for stuck: in its load, and later."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.processes import ProcessWork
from meshd.head.llama_server import (
    LOAD_STILL_SECONDS,
    STUCK,
    STUCK_SECONDS,
    WINDOW_SECONDS,
    LoadWatch,
    ServerWatch,
    SilentTimes,
    named_files,
)
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState

from tests.sim.loop import VirtualLoop, run
from tests.unit.head.scene import scene

pytestmark = pytest.mark.virtual

Step = Callable[[float], tuple[ProcessWork, int]]


def watched(step: Step, *, seconds: float = 4 * LOAD_STILL_SECONDS) -> list[float]:
    """The seconds at which it was held for stuck, when it is looked at every second."""
    watch = LoadWatch()
    return [now for now in map(float, range(int(seconds))) if watch.look(now, *step(now))]


def test_one_that_only_computes_is_stuck_after_that_long() -> None:
    assert watched(lambda now: (ProcessWork(0.1 * now, 1000), 7))[0] == LOAD_STILL_SECONDS


@pytest.mark.parametrize(
    "step",
    [
        lambda now: (ProcessWork(now, 1000 + int(now) // 200), 7),  # reads from a slow disk
        lambda now: (ProcessWork(now, 1000), int(now) // 200),  # prints a line now and then
        lambda _: (ProcessWork(3.0, 1000), 7),  # waits for a worker
        lambda now: (ProcessWork(0.01 * now, 1000), 7),  # looks out for a worker
    ],
)
def test_one_that_reads_prints_or_waits_is_not(step: Step) -> None:
    assert watched(step) == []


def test_what_it_did_before_does_not_count() -> None:
    """It read for an hour, with all processors."""

    def step(now: float) -> tuple[ProcessWork, int]:
        return ProcessWork(64.0 * min(now, 3600.0), int(min(now, 3600.0))), 7

    assert watched(step, seconds=3600 + 2 * LOAD_STILL_SECONDS) == []


def test_it_says_what_to_do() -> None:
    assert "--chat-template" in STUCK


def ends_within(
    ask: Callable[[], bool], *, seconds: float, moved: Callable[[], int | None] = lambda: 0
) -> float:
    """Seconds until it is held for stuck, where each question takes 2 s or nothing; 0.0: never."""

    async def answers() -> bool:
        free = ask()
        await asyncio.sleep(0.001 if free else 2.0)
        return free

    async def main() -> float:
        watch = ServerWatch(answers, moved)
        watch.requested(1)
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(seconds):
                assert "made no progress" in await watch.until_stuck()
        except TimeoutError:
            return 0.0
        return now() - began

    return run(main())


def test_a_loop_that_answers_nothing_is_stuck() -> None:
    assert STUCK_SECONDS <= ends_within(lambda: False, seconds=600.0) < 2 * STUCK_SECONDS


def test_one_that_answers_between_long_tokens_is_stuck_as_well() -> None:
    at = 0

    def ask() -> bool:
        nonlocal at
        at += 1
        return at % 4 == 0

    assert 0 < ends_within(ask, seconds=600.0) < WINDOW_SECONDS


def test_a_prompt_that_takes_an_hour_is_not() -> None:
    """llama-server answers beside its batch."""
    assert not ends_within(lambda: True, seconds=3600.0)


def test_nor_one_whose_bytes_move_or_whose_worker_is_out_of_reach() -> None:
    at = 0

    def moving() -> int:
        nonlocal at
        at += 1
        return at

    assert not ends_within(lambda: False, seconds=600.0, moved=moving)
    assert not ends_within(lambda: False, seconds=600.0, moved=lambda: None)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 3)), max_size=60))
def test_only_what_was_silent_lately_counts(asked: list[tuple[float, float]]) -> None:
    silent, now, ends = SilentTimes(), 0.0, []
    for pause, seconds in asked:
        now += pause + seconds
        silent.add(seconds, now)
        ends.append((now, seconds))
    late = [one for end, one in ends if one > 0.5 and end > now - WINDOW_SECONDS]
    assert silent.seconds(now) == pytest.approx(sum(late))


async def test_nobody_asks_while_no_request_is_under_way() -> None:
    asked = 0

    async def answers() -> bool:
        nonlocal asked
        asked += 1
        return True

    watch = ServerWatch(answers, lambda: 0)
    task = asyncio.ensure_future(watch.until_stuck())
    await asyncio.sleep(100.0)
    assert asked == 0
    watch.requested(1)
    await asyncio.sleep(10.0)
    assert 5 < asked <= 11
    watch.requested(0)
    await asyncio.sleep(100.0)
    assert asked <= 12, "once more, in case the last one has left it busy"
    task.cancel()


@pytest.mark.parametrize("client_stays", [True, False])
async def test_the_head_ends_it_and_starts_another_one(tmp_path: Path, client_stays: bool) -> None:
    async with scene(tmp_path) as it:
        await it.ready("anna")
        first = it.llama
        it.serve.requested(1)
        it.bench.loop_is_free = False
        if not client_stays:
            await asyncio.sleep(3.0)
            it.serve.requested(0)
        await it.until(ModelState.LOADING, "made no progress", seconds=60.0)
        assert first.killed
        it.bench.loop_is_free = True
        await it.until(ModelState.READY, seconds=10.0)
        assert it.serve.crashes == 1
        await asyncio.sleep(120.0)
        assert it.serve.crashes == 1 and it.serve.readiness.state is ModelState.READY


@pytest.mark.parametrize(
    ("signal", "no_memory", "crashes"),
    [
        (6, "", 1),
        (11, "", 1),
        (9, "", 0),
        (9, "the memory of this machine ran out", 1),
        (15, "", 0),
        (None, "", 0),
    ],
)
async def test_its_own_signals_and_too_much_memory_count_as_crashes(
    tmp_path: Path, signal: int | None, no_memory: str, crashes: int
) -> None:
    async with scene(tmp_path) as it:
        await it.ready("anna")
        broke = asyncio.ensure_future(it.serve.upstream_broke("the connection was reset"))
        it.llama.die("ended", signal=signal, no_memory=no_memory)
        await broke
        assert it.serve.crashes == crashes, "known when the gateway has its answer"
        await it.until(ModelState.READY, seconds=10.0)
        assert it.serve.crashes == crashes


async def test_a_lost_worker_explains_any_end(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.ready("anna")
        broke = asyncio.ensure_future(it.serve.upstream_broke("the connection was reset"))
        it.llama.die("ended", signal=6)
        await asyncio.sleep(0.2)
        it.workers["anna"].children[0].die("ended by signal 9")
        await broke
        assert it.serve.crashes == 0
        await it.until(ModelState.READY, seconds=30.0)
        assert it.serve.crashes == 0


async def test_a_worker_out_of_reach_explains_silence(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        await it.ready()
        it.serve.requested(1)
        it.bench.loop_is_free = False
        anna.since = asyncio.get_running_loop().time()
        anna.say(PeerState.SUSPENDED)
        await asyncio.sleep(60.0)
        assert it.serve.crashes == 0 and not it.llama.killed


async def test_a_process_that_stands_still_itself_does_not_count_as_silence() -> None:
    """While llama-server is asked, this loop runs nothing for 10 s, again and again."""

    async def answers() -> bool:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await asyncio.sleep(0.05)
        loop.stand_still(10.0)
        return True

    watch = ServerWatch(answers, lambda: 0)
    watch.requested(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(600.0):
            await watch.until_stuck()


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (("--temp", "0.5"), ()),
        (("--lora", "/m/a.gguf", "--grammar-file", "/m/g.gbnf"), ("/m/a.gguf", "/m/g.gbnf")),
        (("--lora-scaled", "/m/a.gguf:0.5,/m/b.gguf:2"), ("/m/a.gguf", "/m/b.gguf")),
        (("--alias", "/"), ()),  # not everything
        (("--alias", str(Path.home())), ()),
    ],
)
def test_files_that_options_name_can_be_read(words: tuple[str, ...], read: tuple[str, ...]) -> None:
    assert named_files(words) == ([Path(one) for one in read], [])


def test_a_file_to_write_is_made_and_its_folder_stays_closed(tmp_path: Path) -> None:
    log, slots = tmp_path / "a.log", tmp_path / "slots"
    words = ("--log-file", str(log), "--slot-save-path", str(slots))
    assert named_files(words) == ([], [log, slots])
    assert log.exists() and not slots.exists()


@pytest.mark.parametrize("option", ["-hf", "--hf-repo", "--model-url", "-mu"])
def test_what_downloads_is_not_confined(option: str) -> None:
    assert named_files((option, "x")) is None
