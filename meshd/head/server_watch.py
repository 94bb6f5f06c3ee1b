"""Notices a llama-server that computes for ever: its loop answers nothing, and no byte moves.

llama-server has one loop for all answers. An ambiguous grammar, say, keeps it at one token while the ways
through the grammar multiply: all answers wait, also when the client that asked has left, and `/health` is 200
all the time, as its HTTP threads answer that. `/slots` is answered by the loop, or beside it while the model
computes a batch (server_queue::yield_to_queue of the pin). So a prompt that takes an hour answers within
milliseconds. What does not answer is between two batches, where nothing takes seconds but the network: then
bytes move to or from a worker. Processor time would tell nothing, as all of these use it.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from meshd.base.tasks import Owner
from meshd.process.interface import ReadyProbe

STUCK_SECONDS = 20.0  # without an answer, of the last WINDOW_SECONDS: each token may end one such time
WINDOW_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_BEAT_SECONDS = 0.1  # between two looks at whether this process runs
_PROMPT_SECONDS = 0.5  # of an answer: less than that nobody waits for


class SilentTimes:
    """How long questions went unanswered lately. Pure; `now` in seconds of one clock."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque()  # end, seconds

    def add(self, seconds: float, now: float) -> None:
        """A question that was asked so long ago has its answer, or is given up."""
        if seconds > _PROMPT_SECONDS:
            self._times.append((now, seconds))

    def seconds(self, now: float) -> float:
        """Of the last WINDOW_SECONDS."""
        while self._times and self._times[0][0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        return sum(seconds for _, seconds in self._times)


class ServerWatch:
    """Of one llama-server: asks while requests are under way, and until it has answered afterwards."""

    def __init__(self, ask: ReadyProbe, moved: Callable[[], int | None]) -> None:
        """`moved`: bytes to and from all workers so far; None while one of them is out of reach."""
        self._ask = ask
        self._moved = moved
        self._wanted = asyncio.Event()
        self._active = 0

    def requested(self, active: int) -> None:
        """So many requests are under way now."""
        self._active = active
        if active:
            self._wanted.set()

    async def until_stuck(self) -> str:
        """Return why it is held for stuck, when it is."""
        now, silent = asyncio.get_running_loop().time, SilentTimes()
        while silent.seconds(now()) < STUCK_SECONDS:
            await self._wanted.wait()
            before = self._moved()
            answered, seconds = await self._asked()
            if before is not None and self._moved() == before:
                silent.add(seconds, now())
            if answered and not self._active:
                self._wanted.clear()
            await asyncio.sleep(_PAUSE_SECONDS)
        return f"it made no progress for {STUCK_SECONDS:.0f} of {WINDOW_SECONDS:.0f} s, so meshd ended it"

    async def _asked(self) -> tuple[bool, float]:
        """Return whether it answered, and for how many seconds this loop, which runs meanwhile, waited.

        A beat that comes late is this process standing still: that says nothing of llama-server.
        """
        now, waited = asyncio.get_running_loop().time, 0.0
        async with Owner() as owner:
            question = owner.start(self._answer(), name="question to llama-server")
            while not question.done():
                began = now()
                await asyncio.wait([question], timeout=_BEAT_SECONDS)
                waited += min(now() - began, _BEAT_SECONDS)
        return question.result(), waited

    async def _answer(self) -> bool:
        return await self._ask()
