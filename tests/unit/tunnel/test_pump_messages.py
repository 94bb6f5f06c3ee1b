"""What the pump tells of messages, and how long it lets a peer's wait."""

import asyncio

import pytest
from meshd.tunnel.pump import pump

from tests.conformance.run import until
from tests.unit.tunnel.test_pump import Upper, scene


class Told:
    """A Passage."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def sent(self) -> None:
        self._words.append("sent")

    def received(self) -> None:
        self._words.append("received")


async def test_only_what_passes_is_told_as_a_message() -> None:
    async with scene() as (it, owner):
        told: list[str] = []
        inspector = Upper()
        copying = pump(it.local, it.near, counter=it.counter, inspector=inspector, passage=Told(told))
        owner.start(copying, name="pump")
        loop = asyncio.get_running_loop()
        await it.client_sends(b"aa")
        assert await it.far.read() == b"AA"  # by now it copies
        told.clear()
        await it.far.write(b"c")
        await until(lambda: it.counter.received == 1)
        assert told == [], "a part of a message is kept"
        await it.far.write(b"d")
        assert await loop.sock_recv(it.client, 100) == b"CD"
        assert told == ["received"]
        await it.client_sends(b"a")
        await until(lambda: inspector.seen["to"] == b"aaa")
        assert told == ["received"]
        await it.client_sends(b"b")
        assert await it.far.read() == b"AB"
        assert told == ["received", "sent"]
        owner.cancel()


@pytest.mark.parametrize("seconds", [0.001, 3600.0])
async def test_what_a_peer_sends_waits_as_long_as_it_has_to(seconds: float) -> None:
    async with scene() as (it, owner):
        asked = 0

        def pause() -> float:
            nonlocal asked
            asked += 1
            return seconds if seconds > 1 or asked % 2 else 0.0  # it waits once for each chunk

        inspector = Upper()
        inspector.waits = pause
        copying = pump(it.local, it.near, counter=it.counter, inspector=inspector)
        owner.start(copying, name="pump")
        await it.client_sends(b"aa")
        assert await it.far.read() == b"AA", "the other way goes on"
        for _ in range(10):
            await it.far.write(b"cd" * 10)
        if seconds < 1:
            loop, got = asyncio.get_running_loop(), b""
            while len(got) < 200:
                got += await loop.sock_recv(it.client, 1000)
            assert got == b"CD" * 100
        else:
            await until(lambda: asked > 1)
            assert inspector.seen["from"] == b""
        owner.cancel()


async def test_nothing_overtakes_what_waits() -> None:
    """Its time may be over before the task that waits runs again: more can arrive in between."""
    async with scene() as (it, owner):
        loop, pauses = asyncio.get_running_loop(), [0.05, 0.05]

        def pause() -> float:
            if len(pauses) == 1:  # the first one is about to wait, and the second one comes late enough
                loop.call_soon(it.far.try_write, b"ef")
            return pauses.pop() if pauses else 0.0

        inspector = Upper()
        inspector.waits = pause
        copying = pump(it.local, it.near, counter=it.counter, inspector=inspector)
        owner.start(copying, name="pump")
        await it.client_sends(b"aa")
        assert await it.far.read() == b"AA"  # by now it copies
        await it.far.write(b"cd")
        got = b""
        while len(got) < 4:
            got += await loop.sock_recv(it.client, 100)
        assert got == b"CDEF"
        owner.cancel()
