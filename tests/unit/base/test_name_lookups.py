"""Names are looked up beside the loop, each once at a time, and a lookup that hangs keeps no program."""

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from meshd.base.wakeful_loop import MOST_LOOKUPS, LookupLoop

HANG = """
import asyncio, socket, sys, time
from meshd.base.wakeful_loop import LookupLoop
socket.getaddrinfo = lambda *question: time.sleep(600)
async def main():
    try:
        async with asyncio.timeout(0.1):
            await asyncio.get_running_loop().getaddrinfo("a.example", 1)
    except TimeoutError:
        print("given up")
with asyncio.Runner(loop_factory=LookupLoop) as runner:
    runner.run(main())
"""


class Resolver:
    """Stands in for the system's: answers once `goes_on`, with the question as the address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.goes_on = threading.Event()

    def getaddrinfo(self, host: Any, port: Any, *_rest: int) -> list[Any]:
        self.asked.append(host)
        assert self.goes_on.wait(60)
        if host == "none.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.goes_on.set()


def test_one_question_is_asked_once_at_a_time(resolver: Resolver) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asking = [asyncio.ensure_future(loop.getaddrinfo("a.example", 1)) for _ in range(3)]
        failing = asyncio.ensure_future(loop.getaddrinfo("none.example", 1))
        await asyncio.sleep(0)
        asking[0].cancel()
        resolver.goes_on.set()
        _, *found = await asyncio.gather(*asking, return_exceptions=True)
        assert [one[0][4] for one in found if isinstance(one, list)] == [("a.example", 1)] * 2
        with pytest.raises(socket.gaierror):
            await failing
        assert sorted(resolver.asked) == ["a.example", "none.example"]
        await loop.getaddrinfo("a.example", 1)
        assert len(resolver.asked) == 3

    with asyncio.Runner(loop_factory=LookupLoop) as runner:
        runner.run(main())


def test_there_are_no_more_threads_than_that(resolver: Resolver) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asking = [loop.getaddrinfo(f"{number}.example", 1) for number in range(MOST_LOOKUPS)]
        waiting = asyncio.gather(*asking)
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("more.example", 1)
        resolver.goes_on.set()
        assert len(await waiting) == MOST_LOOKUPS
        assert await loop.getaddrinfo("more.example", 1)

    with asyncio.Runner(loop_factory=LookupLoop) as runner:
        runner.run(main())


def test_a_lookup_that_hangs_does_not_keep_the_program() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")
    assert time.monotonic() - began < 60
