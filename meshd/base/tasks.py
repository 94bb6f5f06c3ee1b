"""Own tasks and timers: the only place where tasks are created.

An `Owner` is a `TaskGroup` that can also be asked to stop: leaving its block waits for every task;
`cancel()` ends them. Nothing is fired and forgotten. An `Alarm` is a timer that is set at will and cancelled
with its owner; `watch_sleep` notices that this machine, or this process, has slept.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Self, TypeVar, TypeVarTuple

from meshd.base.errors import Closed, MeshdError
from meshd.base.fault_boundary import Blame, ended

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
CLOCK_LOOK_SECONDS = 2.0  # between two checks of the clocks
SLEPT_LEAST = 5.0  # seconds; a busy machine is late by less


class Owner:
    """Async context manager over `asyncio.TaskGroup` whose tasks can be ended on purpose.

    An exception in one task cancels the others and is raised from the block (as an ExceptionGroup,
    see `first_error`). `cancel()` ends all tasks without an error.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: dict[asyncio.Task[object], None] = {}  # in the order in which they were started
        self._open = False
        self._cancelling = 0  # requests of before

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        task = asyncio.current_task()
        self._cancelling = task.cancelling() if task is not None else 0
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._asked_itself()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            if self._cancelled_meanwhile(before) and group.split((MeshdError, OSError))[1] is None:
                raise asyncio.CancelledError from group
            raise
        finally:
            self._open = False

    def _asked_itself(self) -> bool:
        """Return True if the group has cancelled our task to leave the block after a failure."""
        return bool(getattr(self._group, "_parent_cancel_requested", False))

    def _cancelled_meanwhile(self, asked_before: bool) -> bool:
        """Return True if somebody else cancelled our task while one of the group's failed.

        Before Python 3.13 a TaskGroup then raises the failure alone, and its handler goes on as if nobody had
        cancelled it; and it leaves its own request counted, which asyncio.timeout mistakes.
        """
        task = asyncio.current_task()
        if task is None or sys.version_info >= (3, 13):
            return False
        if self._asked_itself() and not asked_before:
            task.uncancel()
        return task.cancelling() > self._cancelling

    @property
    def is_open(self) -> bool:
        """True while `start` may be called."""
        return self._open

    def start(self, work: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        """Start `work` as a task owned by this block; `name` shows in debuggers and leak reports.

        Raises Closed when the block is being left. Others may still be at work then: all that a node
        runs is cancelled at once, and ends in any order.
        """
        try:
            task = self._group.create_task(work, name=name)
        except RuntimeError as error:
            work.close()
            if not self._open:  # not entered yet, or left for good
                raise
            raise Closed(f"not started: {name}", hint="meshd is stopping") from error
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def start_for(
        self, source: str, work: Coroutine[object, object, T], *, name: str, blame: Blame | None = None
    ) -> asyncio.Task[T | None]:
        """Start work that an outsider caused: if it fails, only it ends (base/fault_boundary.py).

        `source` names the outsider in the log; `blame` is called for unexpected failures. The task returns
        None if it failed.
        """
        try:
            task = self.start(ended(work, source=source, name=name, blame=blame), name=name)
        except Closed:
            work.close()
            raise
        task.add_done_callback(lambda _: work.close())  # one that is cancelled before its first step
        return task

    def cancel(self) -> None:
        """Ask every task to end; the block is left when they have."""
        for task in list(self._tasks):
            task.cancel()


async def cancel_and_wait(*tasks: asyncio.Task[T]) -> None:
    """Cancel tasks and wait until each has really ended; their own errors are dropped, ours is not."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        while not task.done():
            # wait() neither raises the task's error nor cancels it when we are cancelled
            await asyncio.wait([task])
        if not task.cancelled():
            task.exception()


async def until_done(step: asyncio.Future[T]) -> None:
    """Wait for a thread's step; when cancelled, still wait for its end, so that only one ever runs."""
    try:
        await asyncio.wait([step])
    finally:
        if not step.done():
            await asyncio.wait([step])


async def in_thread(work: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """Run `work` in a thread; return or raise what it does. A cancel takes effect when `work` has ended."""
    running = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        await until_done(running)
    except asyncio.CancelledError:
        if running.done():
            running.exception()  # seen, though nobody is told
        raise
    return running.result()


def first_error(error: BaseException) -> BaseException:
    """Return the first plain exception inside (nested) groups: the one that a user wants to read."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def first_success(
    starts: Sequence[tuple[float, Callable[[], Coroutine[object, object, T]]]],
    *,
    discard: Callable[[T], Coroutine[object, object, None]],
) -> T:
    """Race attempts that begin `delay` seconds after the call each; the losers are cancelled and awaited.

    As in RFC 8305, a failed attempt brings the next one forward. A loser that succeeded anyway is
    handed to `discard`. Raises ExceptionGroup with every failure if none succeeds.
    """
    if not starts:
        raise ValueError("nothing to race")
    loop = asyncio.get_running_loop()
    waiting = sorted(starts, key=lambda item: item[0])
    origin = loop.time()
    running: set[asyncio.Task[T]] = set()
    failures: list[Exception] = []
    winner: asyncio.Task[T] | None = None
    try:
        while winner is None and (waiting or running):
            # Start the next attempt when it is due, or when nothing runs.
            if waiting and (not running or loop.time() - origin >= waiting[0][0]):
                _, make = waiting.pop(0)
                running.add(loop.create_task(make(), name="attempt"))
            timeout = max(0.0, waiting[0][0] - (loop.time() - origin)) if waiting else None
            done, running = await asyncio.wait(running, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            # Take the first success; a failure brings the next attempt forward.
            for task in done:
                error = task.exception()
                if error is None:
                    if winner is None:
                        winner = task
                    else:
                        running.add(task)
                elif isinstance(error, Exception):
                    failures.append(error)
                    if waiting:
                        waiting[0] = (0.0, waiting[0][1])
                else:
                    raise error
    finally:
        # Cancel the losers, and discard those that succeeded meanwhile.
        await cancel_and_wait(*running)
        for task in running:
            if not task.cancelled() and task.exception() is None:
                await discard(task.result())
    if winner is None:
        raise ExceptionGroup("all attempts failed", failures)
    return winner.result()


class Alarm:
    """Call `ring` at the time that was set last. `run` must be running for anything to happen.

    A session moves its next timeout with nearly every message. Waking a task for each would cost more than
    the message; a handle of the loop costs a few microseconds.
    """

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self.at: float | None = None  # loop time in seconds at which it rings; None: it does not
        self._handle: asyncio.TimerHandle | None = None
        self._failed: asyncio.Future[None] | None = None  # while `run` runs

    def set(self, at: float | None) -> None:
        """Ring at loop time `at`, instead of when it would have."""
        if at == self.at and self._handle is not None:
            return
        self.at = at
        self._drop()
        if at is not None and self._failed is not None:
            self._handle = self._failed.get_loop().call_at(at, self._fired)

    async def run(self) -> None:
        """Own the timer until cancelled. Raises what `ring` raised."""
        self._failed = asyncio.get_running_loop().create_future()
        self.set(self.at)
        try:
            await self._failed
        finally:
            self._failed = None
            self._drop()

    def _fired(self) -> None:
        """Rings here and now: a turn of the event loop more, to wake a task, would cost as much again."""
        self._handle = self.at = None
        try:
            self._ring()
        except Exception as error:
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)  # which `run` raises
                return
            raise

    def _drop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


def boot_seconds() -> float:
    """Return the seconds since boot, including suspends if the system tells (Linux)."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


async def watch_sleep(woke: Callable[[float], None], *, boot: Callable[[], float] = boot_seconds) -> None:
    """Call `woke` with the seconds slept after each sleep of SLEPT_LEAST or more, until cancelled.

    During a suspend the monotonic clock stops, so code that counts seconds does not notice. The clock since
    boot continues, and their difference is the sleep. A stopped process (SIGSTOP) sees monotonic time jump.
    """
    loop = asyncio.get_running_loop()
    while True:
        since, booted = loop.time(), boot()
        await asyncio.sleep(CLOCK_LOOK_SECONDS)
        ran = loop.time() - since
        slept = max(boot() - booted, ran) - CLOCK_LOOK_SECONDS
        if slept >= SLEPT_LEAST:
            woke(slept)
