"""An event loop that polls for a moment where a message is about to come, instead of going to sleep.

On a machine with many processors, those that have nothing to do sleep deeply. To wake one takes longer than
all that a daemon does with a message, and each message of a token wakes several. So while messages follow
each other closely, the loop asks again and again without sleeping; that keeps one processor busy. It stops
where that is in vain, where another process needs the processor, and where there are few to be shared.
"""

import asyncio
import os
import resource
import selectors
import sys
import time
from collections.abc import Callable
from pathlib import Path

LEAST_PROCESSORS = 4
LEAST_FOR_CHILDREN = 8  # of which several threads wait at once
FOLLOW_SECONDS = 0.02  # messages that follow each other in less; and so long the next one is waited for
REST_SECONDS = 0.05  # without polling after it was in vain; twice as long each time
MOST_REST_SECONDS = 5.0
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

Ready = list[tuple[selectors.SelectorKey, int]]


class Wakefulness:
    """Until when to poll. Times in seconds, of one clock."""

    def __init__(self) -> None:
        self._last = -FOLLOW_SECONDS  # when a message passed
        self._until = 0.0
        self._rest = REST_SECONDS
        self._rests_until = 0.0
        self.last_sent = -FOLLOW_SECONDS  # when a message of our own left, to whomever

    def passed(self, now: float) -> None:
        """A message did: is another one near?"""
        if now - self._last < FOLLOW_SECONDS and now >= self._rests_until:
            self._until = now + FOLLOW_SECONDS
        self._last = now

    def until(self) -> float:
        """Poll before this time, and sleep after it."""
        return self._until

    def paid(self) -> None:
        """Something came while it was polled for."""
        self._rest = REST_SECONDS

    def was_in_vain(self, now: float) -> None:
        """Nothing came in time, or somebody else needed the processor."""
        self._until = 0.0
        self._rests_until = now + self._rest
        self._rest = min(2 * self._rest, MOST_REST_SECONDS)


class Conversation:
    """Messages with one peer. Those that nothing of our own came before say nothing: who drips bytes keeps
    nobody awake.
    """

    def __init__(self, wakefulness: Wakefulness, clock: Callable[[], float], *, asks: bool) -> None:
        """`asks`: it is the peer who asks, and it may have answers sent elsewhere, as a head with several
        workers does. So what goes elsewhere counts as well.
        """
        self._wakefulness = wakefulness
        self._clock = clock
        self._asks = asks
        self._last_sent = -FOLLOW_SECONDS

    def sent(self) -> None:
        """A message of a child of ours left."""
        self._last_sent = self._wakefulness.last_sent = now = self._clock()
        self._wakefulness.passed(now)

    def received(self) -> None:
        """One came for it."""
        now = self._clock()
        if now - (self._wakefulness.last_sent if self._asks else self._last_sent) < FOLLOW_SECONDS:
            self._wakefulness.passed(now)


class WakefulSelector(selectors.DefaultSelector):
    """Polls as `wakefulness` has it, then waits as any selector."""

    def __init__(
        self,
        wakefulness: Wakefulness,
        *,
        clock: Callable[[], float] = time.monotonic,
        displaced: Callable[[], int] | None = None,
    ) -> None:
        """`displaced` counts how often another process took the processor from this thread."""
        super().__init__()
        self._wakefulness = wakefulness
        self._clock = clock
        self._displaced = displaced or _displaced

    def select(self, timeout: float | None = None) -> Ready:
        until = self._wakefulness.until()
        if not until or (timeout is not None and timeout <= 0):
            return super().select(timeout)
        began = self._clock()
        if began >= until:
            return super().select(timeout)
        ready, now = self._poll(until if timeout is None else min(until, began + timeout))
        if ready or timeout is None:
            return ready or super().select(None)
        return super().select(max(0.0, timeout - (now - began)))

    def _poll(self, end: float) -> tuple[Ready, float]:
        """What is ready before `end`, and the time now."""
        before = self._displaced()
        while not (ready := super().select(0)) and self._clock() < end:
            pass
        now = self._clock()
        if self._displaced() != before or (not ready and now >= self._wakefulness.until()):
            self._wakefulness.was_in_vain(now)
        elif ready:
            self._wakefulness.paid()
        return ready, now


class WakefulLoop(asyncio.SelectorEventLoop):
    """Give it to asyncio.Runner(loop_factory=WakefulLoop)."""

    def __init__(self, processors: int | None = None) -> None:
        """`processors`: as many may be used; None finds out."""
        has_enough = (processors or usable_processors()) >= LEAST_PROCESSORS
        self._wakefulness = Wakefulness() if has_enough else None
        super().__init__(WakefulSelector(self._wakefulness) if self._wakefulness is not None else None)

    @property
    def waits_until(self) -> float:
        """It polls for what comes before this loop time; 0: it does not."""
        return self._wakefulness.until() if self._wakefulness is not None else 0.0

    def conversation(self, *, asks: bool) -> Conversation | None:
        """Messages that go through this process to a peer and back, closely; None where nothing polls."""
        wakefulness = self._wakefulness
        return Conversation(wakefulness, self.time, asks=asks) if wakefulness is not None else None


def children_may_poll() -> bool:
    """Whether there are processors for the threads of a child that wait, beside this loop."""
    return usable_processors() >= LEAST_FOR_CHILDREN


def usable_processors() -> int:
    """How many processors this process may use at once."""
    if sys.platform == "linux":
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return min(count, int(quota) // int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return count


def _displaced() -> int:
    if sys.platform == "linux":
        whose = resource.RUSAGE_THREAD
    else:
        whose = resource.RUSAGE_SELF
    return resource.getrusage(whose).ru_nivcsw
