"""When a load is held for stuck."""

from collections.abc import Callable

import pytest
from meshd.base.processes import ProcessWork
from meshd.head.llama_server import LOAD_STILL_SECONDS, STUCK, LoadWatch

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
