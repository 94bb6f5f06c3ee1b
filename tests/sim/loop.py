"""An asyncio loop whose clock moves only when nothing is left to do: minutes pass in milliseconds.

Timers fire in order and at exactly their time, so runs repeat. A test that waits for something that will
never happen fails at once instead of hanging.

asyncio fires timers up to its clock's resolution before their time. This clock, which only timers move,
would then stand for ever while its setter finds that it is not yet time, and sets it again: so its
resolution is the least step that its number can make.
"""

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

Result = TypeVar("Result")
Args = TypeVarTuple("Args")


class _JumpSelector(selectors.BaseSelector):
    """Where the loop would sleep, time jumps."""

    def __init__(self, turn: Callable[[], None], jump: Callable[[float | None], None]) -> None:
        self._real = selectors.DefaultSelector()
        self._turn = turn
        self._jump = jump

    def register(self, fileobj: Any, events: int, data: object = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._turn()
        ready = self._real.select(0)
        if not ready and timeout != 0:
            self._jump(timeout)
        return ready

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()


class VirtualLoop(asyncio.SelectorEventLoop):
    """Give it to asyncio.Runner(loop_factory=VirtualLoop), or use `run`."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._has_found = False  # in this turn, so that the next one comes before the clock moves
        self._watchers: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        super().__init__(_JumpSelector(self._turn, self._jump))
        self._clock_resolution = math.ulp(self._now)

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def stand_still(self, seconds: float) -> None:
        """Let time pass in which this process runs nothing."""
        self._now += seconds

    def _turn(self) -> None:
        """All that was ready has run."""
        self._has_found = self._watchers != [] and self._look()

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Args]], object],
        *args: *Args,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Also `call_later`. A wait too short for this clock takes its least step."""
        when = max(when, math.nextafter(self._now, math.inf))
        return super().call_at(when, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], Result], *args: *Args
    ) -> asyncio.Future[Result]:
        """At once: what other threads compute takes no virtual time, and runs repeat."""
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def seen(self, true: Callable[[], bool]) -> asyncio.Future[None]:
        """Return what is done after the first turn after which something is true."""
        found: asyncio.Future[None] = self.create_future()
        self._watchers.append((true, found))
        return found

    def _look(self) -> bool:
        """Return whether a watcher has seen what it waits for."""
        waiting = [one for one in self._watchers if not one[1].done()]  # a deadline cancels
        self._watchers = [one for one in waiting if not one[0]()]
        for one in waiting:
            if one not in self._watchers:
                one[1].set_result(None)
        return len(self._watchers) < len(waiting)

    def _jump(self, timeout: float | None) -> None:
        if self._has_found:
            return
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set: this would hang for ever")
        self._now += timeout
        self._clock_resolution = math.ulp(self._now)


async def until(true: Callable[[], bool], *, seconds: float = 100.0) -> None:
    """Wait on a virtual clock until something is true, if only for a turn of the loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    if not true():
        async with asyncio.timeout(seconds):
            await loop.seen(true)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run `main` on a virtual clock that starts at 1000 s."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
