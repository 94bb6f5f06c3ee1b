"""What a stream says while no answer comes."""

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from meshd.base.tasks import Owner
from meshd.gateway.reply import COMMENT, StreamReply

from tests.sim.loop import run

WAITS = b": waits for a worker\n\n"


class Recorded(web.StreamResponse):
    """Notes what is written, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[float, bytes]] = []
        self._begun = False

    @property
    def prepared(self) -> bool:
        return self._begun

    async def prepare(self, request: web.BaseRequest) -> None:
        self._begun = True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append((asyncio.get_running_loop().time(), bytes(data)))


async def said_in(
    seconds: float, notice: Callable[[float], str], *, event_every: float = 0.0
) -> list[tuple[float, bytes]]:
    """`notice`: what is waited for after so many seconds."""
    loop = asyncio.get_running_loop()
    began, response = loop.time(), Recorded()
    request = make_mocked_request("POST", "/")
    reply = StreamReply(request, silence=10.0, headers={}, notice=lambda: notice(loop.time() - began))
    reply.response = response
    async with Owner() as owner:
        owner.start(reply.keep_alive(), name="comments")
        while loop.time() < began + seconds:
            await asyncio.sleep(event_every or seconds)
            if event_every:
                await reply.send(b"data: {}\n\n")
        owner.cancel()
    return [(round(at - began), data) for at, data in response.written]


def test_silence_is_broken_by_comments() -> None:
    assert run(said_in(25.0, lambda _: "")) == [(10, COMMENT), (20, COMMENT)]


def test_what_is_waited_for_is_told_soon_and_then_in_place_of_other_comments() -> None:
    assert run(said_in(25.0, lambda _: "waits for a worker")) == [(1, WAITS), (11, WAITS), (21, WAITS)]


def test_an_answer_that_comes_is_not_commented_on() -> None:
    said = run(said_in(25.0, lambda _: "waits for a worker", event_every=0.75))
    assert {data for _, data in said} == {b"data: {}\n\n"}


def test_what_is_waited_for_next_is_told_as_soon_and_what_counts_on_is_not() -> None:
    def notice(after: float) -> str:
        return f"no connection for {after:.0f} s" if after < 4.5 else "loads" if after < 6.2 else ""

    said = run(said_in(18.0, notice))
    assert said == [(1, b": no connection for 1 s\n\n"), (5, b": loads\n\n"), (15, COMMENT)]


def test_what_is_waited_for_once_more_is_told_again() -> None:
    said = run(said_in(8.0, lambda after: "" if 2 < after < 4 else "waits for a worker"))
    assert said == [(1, WAITS), (4, WAITS)]
