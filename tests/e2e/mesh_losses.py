"""Lose parts of a serving node in a chosen state, for the tests that do so."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from meshd.fleet.fleet import LocalNode
from meshd.worker.mesh_server import CHILD_NAME

from tests.e2e.api_client import Api, Streamed, generation
from tests.e2e.losses import Loss
from tests.e2e.nodes import PROMPT, child_pid, peer_of

Lose = Callable[[], Awaitable[float]]
"""Loses the worker; returns when it could be noticed, of time.monotonic()."""

TOKENS = 60
LONG = 4000  # tokens: no answer ends before it is disturbed
LASTING = 400  # of an answer that is compared, too
LONG_PROMPT = "one two three four five six seven eight nine ten " * 40
STEP = 0.04  # seconds: the loss comes so much later each time
POLL_SECONDS = 0.05
AGAIN_SECONDS = 10.0  # until the next right answer, on a machine that does nothing else
AGAIN_TIMES = 3.0  # on one that does: so often what it took from the head's start to its first answer


@dataclass(frozen=True, slots=True)
class Texts:
    """The answers of one node alone."""

    short: str
    lasting: str
    long: str


@dataclass(slots=True)
class Scene:
    """A head in use. `goes_on`: the loss is a pause, after which the very same answer comes to its end."""

    worker: LocalNode
    head: LocalNode
    api: Api
    texts: Texts
    lose: Lose
    goes_on: bool
    again_within: float

    async def loading(self, number: int, loss: Loss) -> None:
        """Somewhere between the start of the worker's server and the first token."""
        before = child_pid(await self.worker.status(), CHILD_NAME)
        os.kill(before, signal.SIGKILL)
        await self.worker.until(
            lambda status: any(c.name == CHILD_NAME and c.pid not in (None, before) for c in status.children)
        )
        await asyncio.sleep(STEP * (number % 30))
        await self._answers_again(await self.lose(), loss)

    async def prompt(self, number: int, loss: Loss) -> None:
        """Somewhere in 800 tokens of it."""
        await self._in_the_middle(LONG_PROMPT, 0, STEP * (1 + number % 20), self.texts.long, loss)

    async def decode(self, number: int, loss: Loss) -> None:
        """When ten tokens and some more have come."""
        whole = self.texts.short if self.goes_on else self.texts.lasting
        await self._in_the_middle(PROMPT, 10 + number % 7, 0.0, whole, loss)

    async def idle(self, _number: int, loss: Loss) -> None:
        """Nobody asks until it is lost."""
        await self._answers_again(await self.lose(), loss)

    async def shutdown(self, number: int, loss: Loss) -> None:
        """The head is told to end a moment before, at the same time, or a moment after."""
        losing = asyncio.ensure_future(self.lose())
        await asyncio.sleep(STEP * (number % 3))
        began = time.monotonic()
        await self.head.stop()
        loss.since(began)
        with suppress(ProcessLookupError):  # what was to be hit had ended with the lease
            await losing

    async def _in_the_middle(self, prompt: str, pieces: int, delay: float, whole: str, loss: Loss) -> None:
        loop = asyncio.get_running_loop()
        so_far = asyncio.Event()

        def on_piece(streamed: Streamed) -> None:
            if streamed.pieces >= pieces:
                loop.call_soon_threadsafe(so_far.set)

        resumed = await resumes(self.head)
        tokens = TOKENS if self.goes_on else LASTING
        answer = asyncio.ensure_future(self.api.stream(prompt, tokens, on_piece=on_piece))
        if pieces:
            await so_far.wait()
        await asyncio.sleep(delay)
        moment = await self.lose()
        if self.goes_on:
            await self.head.until(lambda status: peer_of(status, "worker").resumes > resumed)
            loss.since(moment)
        streamed = await answer
        loss.wrong = not (whole.startswith(streamed.text) or streamed.text.startswith(whole))
        if self.goes_on:
            assert streamed.error == ""
            assert streamed.text == whole
            loss.again = time.monotonic() - moment
        else:
            loss.since(moment)
            assert streamed.error, "the stream ended without an error event"
            assert not streamed.done
            await self._answers_again(moment, loss)

    async def _answers_again(self, moment: float, loss: Loss) -> None:
        """Errors until then are honest ones, and come soon; the first text is the right one."""
        while True:
            asked = max(moment, time.monotonic())
            answer = await self.api.ask("POST", "/completion", generation(PROMPT, TOKENS))
            if answer.status == 200:
                break  # only `late` bounds it: the time of its tokens depends on the machine
            loss.since(asked)
            assert answer.status in (500, 502, 503), answer
            if time.monotonic() > moment + self.again_within:
                raise TimeoutError(f"no answer within {self.again_within:g} s: {answer.body}")
            await asyncio.sleep(POLL_SECONDS)
        loss.wrong |= answer.body["content"] != self.texts.short
        loss.again = time.monotonic() - moment


def again_within(began: float) -> float:
    """Most seconds from a loss to the next right answer; the first came now, of a head started at `began`."""
    return max(AGAIN_SECONDS, AGAIN_TIMES * (time.monotonic() - began))


async def hit_in_mid_answer(
    api: Api, pid: int, number: signal.Signals, *, within: float
) -> tuple[Streamed, float]:
    """Send `pid` the signal when ten pieces have come.

    Returns what the client got, `within` seconds, and how many of them are left.
    """
    ten, hit = threading.Event(), threading.Event()

    def on_piece(streamed: Streamed) -> None:
        if streamed.pieces == 10:
            ten.set()
            hit.wait(10.0)

    answer = asyncio.ensure_future(api.stream(PROMPT, LONG, on_piece=on_piece))
    assert await asyncio.to_thread(ten.wait, 60.0), "no ten pieces within 60 s"
    os.kill(pid, number)
    moment = time.monotonic()
    hit.set()
    async with asyncio.timeout(within):
        streamed = await answer
    return streamed, moment + within - time.monotonic()


async def resumes(head: LocalNode) -> int:
    """Return how often the head's session with the worker went on over another connection."""
    return peer_of(await head.status(), "worker").resumes


def crashes(head: LocalNode) -> int:
    """Return how often llama-server has aborted or crashed, by the head's log."""
    text = (head.spec.home / "node.log").read_text(errors="replace")
    return sum(text.count(f"ended by {number.name}") for number in (signal.SIGABRT, signal.SIGSEGV))
