"""Finds what a test leaves behind: tasks, child processes, descriptors. Linux only; elsewhere: nothing.

Tasks: whatever `asyncio.run` has to cancel at its end was owned by nobody. Children and descriptors: /proc
before and after. A look costs well under a millisecond; only a suspicion costs a garbage collection and a
wait, as transports and threads of the last test may just be ending.
"""

import asyncio
import asyncio.runners
import gc
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GRACE_SECONDS = 2.0
_FD_FOLDER = "/proc/self/fd"
_forgotten_tasks: list[str] = []


@dataclass(frozen=True, slots=True)
class Seen:
    """Descriptors with what they lead to, and children."""

    descriptors: frozenset[tuple[int, str]]
    children: frozenset[int]


def look() -> Seen:
    """Return what this process holds now."""
    if sys.platform == "linux":
        return Seen(frozenset(_descriptors()), frozenset(_children()))
    else:
        return Seen(frozenset(), frozenset())


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir(_FD_FOLDER):  # noqa: PTH208 - twice as fast, and done for every test
        try:
            yield int(name), os.readlink(f"{_FD_FOLDER}/{name}")  # noqa: PTH115
        except OSError:
            continue  # the one that listed the folder


def _children() -> Iterator[int]:
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        try:
            yield from map(int, Path(f"/proc/self/task/{thread}/children").read_text().split())
        except OSError:
            continue  # the thread has ended


@contextmanager
def tasks_noted() -> Iterator[None]:
    """While inside, `leaks_since` knows of tasks that `asyncio.run` found at its end."""
    plain = asyncio.runners._cancel_all_tasks  # type: ignore[attr-defined]

    def cancel_and_note(loop: asyncio.AbstractEventLoop) -> None:
        _forgotten_tasks.extend(f"task {task.get_name()}: {task!r}" for task in asyncio.all_tasks(loop))
        plain(loop)

    asyncio.runners._cancel_all_tasks = cancel_and_note  # type: ignore[attr-defined]
    try:
        yield
    finally:
        asyncio.runners._cancel_all_tasks = plain  # type: ignore[attr-defined]


def leaks_since(before: Seen) -> list[str]:
    """Return what is held now and was not before, in words."""
    found = _forgotten_tasks.copy()
    _forgotten_tasks.clear()
    left = _left(before)
    if left:
        gc.collect()
        deadline = time.monotonic() + GRACE_SECONDS
        while (left := _left(before)) and time.monotonic() < deadline:
            time.sleep(0.01)
    return found + left


def _left(before: Seen) -> list[str]:
    now = look()
    descriptors = [
        f"descriptor {fd}: {target}" for fd, target in sorted(now.descriptors - before.descriptors)
    ]
    return descriptors + [f"child process {pid}" for pid in sorted(now.children - before.children)]
