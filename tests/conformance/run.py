"""Runs one asynchronous test with a deadline, and holds it to leave nothing behind."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TypeVar

from meshd.base.admission import Rate

T = TypeVar("T")
ANY_RATE = Rate("anything", 1e9, 1e9, "peer", "nothing")  # for tests of something else than rates

DEADLINE = 60.0  # seconds; generous: it ends tests that hang, it measures nothing


def run(work: Coroutine[object, object, T], *, seconds: float = DEADLINE) -> T:
    """Run `work` on a loop of its own; fails when tasks or file descriptors are left over."""
    gc.collect()

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        problems: list[dict[str, object]] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        before = open_files()
        async with asyncio.timeout(seconds):
            result = await work
        await nothing_left(before)
        assert not problems, problems
        return result

    return asyncio.run(watched())


def open_files() -> int:
    """Open file descriptors of this process."""
    return len(list(Path("/dev/fd").iterdir()))


async def nothing_left(files: int, *, tasks: int = 1) -> None:
    """Wait until at most `tasks` tasks run and `files` descriptors are open; fails after 20 s."""

    def clean() -> bool:
        return len(asyncio.all_tasks()) <= tasks and open_files() <= files

    try:
        await until(clean)
    except TimeoutError:
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        raise AssertionError(f"left over: {left}, {open_files() - files} descriptors") from None


async def until(condition: Callable[[], bool], *, seconds: float = DEADLINE / 3) -> None:
    """Give the loop turns until `condition` holds. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.002)


async def ticks(count: int) -> None:
    """Let the loop turn `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)
