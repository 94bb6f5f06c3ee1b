"""An event loop that is already awake when the next message of a token comes.

On a machine with many processors, those that have nothing to do sleep deeply. To wake one takes longer than
all that a daemon does with a message, and each message of a token wakes several. Tokens of an answer follow
each other evenly, so the loop learns how long after each message the next one comes, sleeps until shortly
before, and polls from then on (docs/decisions/0066). `native/mesh/rhythm.h` does the same in its processes.

Names are looked up in threads which nothing waits for at the end (LookupLoop). Where no name server answers,
a lookup takes 10 to 30 s, and no call ends it sooner. The threads of asyncio are joined when a program ends,
so such a program would not stop before.
"""

import asyncio
import contextlib
import math
import resource
import select
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from selectors import BaseSelector
from socket import AddressFamily
from typing import Literal

from meshd.base.resource_limits import usable_processors

MOST_LOOKUPS = 32  # at a time, for which there is a thread each; one question has one thread
_Question = tuple[bytes | str | None, bytes | str | int | None, int, int, int, int]
_OfV4 = tuple[Literal[AddressFamily.AF_INET], socket.SocketKind, int, str, tuple[str, int]]
_V6Address = tuple[str, int, int, int] | tuple[int, bytes]
_OfV6 = tuple[Literal[AddressFamily.AF_INET6], socket.SocketKind, int, str, _V6Address]
_Found = list[_OfV4 | _OfV6]


class LookupLoop(asyncio.SelectorEventLoop):
    """An event loop for asyncio.Runner(loop_factory=...)."""

    def __init__(self, selector: BaseSelector | None = None) -> None:
        super().__init__(selector)
        self._lookups: dict[_Question, asyncio.Future[_Found]] = {}

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> _Found:
        """Look up a name as `socket.getaddrinfo` does. Raises OSError or UnicodeError."""
        question = host, port, family, type, proto, flags
        answer = self._lookups.get(question)
        if answer is None:
            if len(self._lookups) >= MOST_LOOKUPS:
                raise socket.gaierror(socket.EAI_AGAIN, "too many names are being looked up")
            answer = self._lookups[question] = self.create_future()
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen in any case
            look_up = partial(self._look_up, question, answer)
            threading.Thread(target=look_up, name="look-up", daemon=True).start()
        return await asyncio.shield(answer)

    def _look_up(self, question: _Question, answer: "asyncio.Future[_Found]") -> None:
        found: _Found | Exception
        try:
            found = socket.getaddrinfo(*question)
        except (OSError, UnicodeError) as error:
            found = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self.call_soon_threadsafe(self._answered, question, answer, found)

    def _answered(
        self, question: _Question, answer: "asyncio.Future[_Found]", found: _Found | Exception
    ) -> None:
        del self._lookups[question]
        if isinstance(found, Exception):
            answer.set_exception(found)
        else:
            answer.set_result(found)


LEAST_PROCESSORS = 4
LEAST_FOR_CHILDREN = 8  # of which several threads wait at once
LONGEST_POLL_SECONDS = 0.02  # messages that follow each other in less; and so long the next one is polled for
LONGEST_TIMED_SECONDS = 0.05  # the same where the loop sleeps until shortly before
REST_SECONDS = 0.05  # without polling after it was in vain; twice as long each time
MOST_REST_SECONDS = 5.0
SHORT_SECONDS = 0.0001  # before a processor sleeps so deeply that waking it takes long
LEAD_SECONDS = 0.0001  # a timer is late by less than this
_MANY = 8

Ready = list[tuple[selectors.SelectorKey, int]]


class Waiting(StrEnum):
    """The way in which the loop, or a child's thread, waits for a message that is expected soon."""

    SLEEP = "sleep"  # until the message is there
    TIMED = "timed"  # sleep until shortly before it is due, then poll
    POLL = "poll"  # without sleeping


AUTO = "auto"


def loop_waiting(setting: str) -> Waiting:
    """Return how the loop of a daemon waits; `setting`: AUTO or a value of Waiting."""
    return _waiting(setting, LEAST_PROCESSORS)


def children_waiting(setting: str, *, computes: bool) -> Waiting:
    """Return how the threads of a native program wait; `setting` as for loop_waiting.

    `computes`: with this machine's processors, whose threads need all of them.
    """
    if setting == AUTO and computes:
        return Waiting.SLEEP
    return _waiting(setting, LEAST_FOR_CHILDREN)


def _waiting(setting: str, least: int) -> Waiting:
    if setting != AUTO:
        return Waiting(setting)
    return Waiting.TIMED if usable_processors() >= least else Waiting.SLEEP


class Rhythm:
    """The expected time from a message to the next one, from recent waits. Durations in seconds."""

    def __init__(self) -> None:
        self._expected = 0.0  # 0: unknown
        self._deviation = 0.0
        self._longer = 0  # waits that were much longer, lately
        self._shorter = 0  # much shorter, one after the other

    def passed(self, waited: float) -> None:
        """Learn from a wait that is over."""
        expected = self._expected
        if waited < SHORT_SECONDS:
            return
        wrong = abs(waited - expected)
        if not expected:
            self._begin(waited)
        elif wrong <= expected / 4:
            self._expected += (waited - expected) / 8
            self._deviation += (wrong - self._deviation) / 4
            self._longer = max(0, self._longer - 1)
            self._shorter = 0
        elif waited > expected:
            self._longer += 2
            if self._longer > 2:  # nearly every other one: those that were expected are only between them
                self._begin(waited)
        else:
            self._shorter += 1
            if self._shorter == _MANY:
                self._begin(waited)

    def _begin(self, waited: float) -> None:
        self._expected, self._deviation = waited, waited / 16
        self._longer = self._shorter = 0

    def rest(self, waited: float) -> float:
        """Return for how long to sleep when the next wait has taken so long.

        0: poll. inf: until woken, as nothing is due. Otherwise half of what is left, so that a processor that
        wakes up late is in time for the rest.
        """
        spread = 2 * self._deviation + LEAD_SECONDS
        expected = self._expected
        is_even = expected and spread <= max(3 * LEAD_SECONDS, expected / 8)
        if not is_even or waited >= expected + spread:
            return math.inf
        left = expected - spread - waited
        return left / 2 if left > LEAD_SECONDS else 0.0


class Wakefulness:
    """Decide when to poll, by the messages that passed. Times in seconds, of one clock."""

    def __init__(self, *, polls: bool = False) -> None:
        """Set up without expectations. `polls`: poll instead of sleeping while messages follow each other
        closely.
        """
        self._polls = polls
        self._longest = LONGEST_POLL_SECONDS if polls else LONGEST_TIMED_SECONDS
        self._last = -math.inf  # when a message passed
        self._rhythm = Rhythm()  # of what comes after it
        self._expects = False
        self._rest = REST_SECONDS
        self._rests_until = 0.0
        self.last_sent = -math.inf  # when a message of our own left, to whomever

    @property
    def longest(self) -> float:
        """The seconds within which messages follow each other."""
        return self._longest

    def passed(self, now: float, rhythm: Rhythm) -> None:
        """Note a message; `rhythm` is that of what comes after messages of its kind."""
        waited = now - self._last
        self._expects = waited < self._longest and now >= self._rests_until
        if waited < self._longest:
            self._rhythm.passed(waited)
        self._last, self._rhythm = now, rhythm

    @property
    def expects(self) -> bool:
        """True if the next message may be polled for."""
        return self._expects

    def rest(self, now: float) -> float:
        """Return for how long to sleep from now on: 0: poll; inf: until something comes."""
        waited = now - self._last
        if not self._expects or waited >= self._longest:
            return math.inf
        return 0.0 if self._polls else self._rhythm.rest(waited)

    def paid(self) -> None:
        """Note that polling was rewarded: something came."""
        self._rest = REST_SECONDS

    def was_in_vain(self, now: float) -> None:
        """Note that polling was in vain, or somebody else needed the processor."""
        self._expects = False
        self._rests_until = now + self._rest
        self._rest = min(2 * self._rest, MOST_REST_SECONDS)

    def was_late(self, now: float) -> None:
        """Note that nothing came while it was polled for."""
        if self._polls:
            self.was_in_vain(now)


class Conversation:
    """The messages exchanged with one peer. Messages that do not answer ours are ignored: a peer that drips
    bytes keeps nobody awake.
    """

    def __init__(self, wakefulness: Wakefulness, clock: Callable[[], float], *, asks: bool) -> None:
        """Set up one peer's conversation.

        `asks`: the peer sends requests, and its replies may go elsewhere (a head with several workers), or it
        forwards what others requested (a neighbour); so messages sent elsewhere count as well.
        """
        self._wakefulness = wakefulness
        self._clock = clock
        self._asks = asks
        self._last_sent = -math.inf
        self._after_sent = Rhythm()
        self._after_received = Rhythm()

    def sent(self) -> None:
        """Note that a message of a child of ours left."""
        self._last_sent = self._wakefulness.last_sent = now = self._clock()
        self._wakefulness.passed(now, self._after_sent)

    def received(self) -> None:
        """Note that a message came for the child."""
        now = self._clock()
        last_sent = self._wakefulness.last_sent if self._asks else self._last_sent
        if now - last_sent < self._wakefulness.longest:
            self._wakefulness.passed(now, self._after_received)


class WakefulSelector(selectors.DefaultSelector):
    """Sleeps and polls as `wakefulness` decides, then waits like any selector."""

    def __init__(
        self,
        wakefulness: Wakefulness,
        *,
        clock: Callable[[], float] = time.monotonic,
        displaced: Callable[[], int] | None = None,
    ) -> None:
        """Set up the selector. `displaced` counts how often another process took the processor from this
        thread.
        """
        super().__init__()
        self._wakefulness = wakefulness
        self._clock = clock
        self._displaced = displaced or _displaced

    def select(self, timeout: float | None = None) -> Ready:
        """Return what is ready within `timeout` seconds; None waits until something is."""
        if (timeout is not None and timeout <= 0) or not self._wakefulness.expects:
            return super().select(timeout)
        end = math.inf if timeout is None else self._clock() + timeout
        ready = self._look(end)
        if ready or timeout is None:
            return ready or super().select(None)
        return super().select(max(0.0, end - self._clock()))

    def _look(self, end: float) -> Ready:
        """Return what is ready before `end`; stop polling when nothing is due any more."""
        before = None  # no poll yet
        while True:
            now = self._clock()
            rest = self._wakefulness.rest(now)
            if rest == math.inf:
                if before is not None:
                    self._wakefulness.was_late(now)
                return []
            if now >= end:
                return []
            if rest:
                self._sleep(min(rest, end - now))
            elif before is None:
                before = self._displaced()
            if ready := super().select(0):
                break
        if before is not None:
            if self._displaced() != before:
                self._wakefulness.was_in_vain(self._clock())
            else:
                self._wakefulness.paid()
        return ready

    def _sleep(self, seconds: float) -> None:
        """Wait until something is ready, or for `seconds`: epoll itself counts milliseconds."""
        select.select([self.fileno()], [], [], seconds)


class WakefulLoop(LookupLoop):
    """An event loop for asyncio.Runner(loop_factory=...)."""

    def __init__(self, waiting: Waiting | None = None) -> None:
        """Set up the loop; `waiting` None means the setting's default."""
        waiting = loop_waiting(AUTO) if waiting is None else waiting
        self._wakefulness = None if waiting is Waiting.SLEEP else Wakefulness(polls=waiting is Waiting.POLL)
        super().__init__(WakefulSelector(self._wakefulness) if self._wakefulness is not None else None)
        if self._wakefulness is not None:
            _make_timers_precise()

    @property
    def is_wakeful(self) -> bool:
        """True if the loop expects a message now, and stays awake for it."""
        return self._wakefulness is not None and self._wakefulness.rest(self.time()) < math.inf

    def conversation(self, *, asks: bool) -> Conversation | None:
        """Return a recorder of messages that pass this process to a peer and back in close succession.

        None where nothing polls.
        """
        wakefulness = self._wakefulness
        return Conversation(wakefulness, self.time, asks=asks) if wakefulness is not None else None


def _make_timers_precise() -> None:
    """Let timers of this thread, and of children, be 1 µs late, where the kernel's default is 50 µs."""
    with contextlib.suppress(OSError):
        Path("/proc/self/timerslack_ns").write_text("1000", encoding="ascii")


def _displaced() -> int:
    if sys.platform == "linux":
        whose = resource.RUSAGE_THREAD
    else:
        whose = resource.RUSAGE_SELF
    return resource.getrusage(whose).ru_nivcsw
