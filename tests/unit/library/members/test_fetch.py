"""Pieces of one content from holders in memory, on a virtual clock: who is waited for, how long, how fast."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from blake3 import blake3
from meshd.base.admission import TokenBucket
from meshd.identity.keys import PeerId
from meshd.library.members.fetch import LEAST_PIECE_RATE, PieceFetcher, TooSlow
from meshd.library.members.piece_plan import PiecePlan
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Stream
from meshd.wire.models import HERE, PIECES_SERVICE

from tests.sim.loop import run
from tests.unit.library.members.exchange_scene import Scene, scene

PIECES = 6
PIECE = bytes(PIECE_BYTES)
INDEX = PieceIndex((PIECES * PIECE_BYTES,), blake3(PIECE).digest() * PIECES)
Give = Callable[[Stream], Awaitable[None]]


class Fetch:
    """What one fetch has asked for and got; `holders` by name."""

    def __init__(self, it: Scene, *, pace: TokenBucket | None = None) -> None:
        self.plan = PiecePlan(INDEX)
        self.given: dict[PeerId, int] = {}
        self._it = it
        self._fetcher = PieceFetcher(it.taker, INDEX, self.plan, self._write, pace=pace, on_bytes=self._count)

    async def _write(self, _number: int, _data: bytes) -> None:
        await asyncio.sleep(0)

    def _count(self, peer: PeerId, count: int) -> None:
        self.given[peer] = self.given.get(peer, 0) + count

    def holder(self, name: str, give: Give) -> PeerId:
        mesh = self._it.mute(name)
        mesh.handle(PIECES_SERVICE, give, allow=lambda _member, _metadata: None)
        return mesh.key.peer

    async def fetch(self, peer: PeerId) -> None:
        await self._fetcher.fetch(peer)


async def numbers_of(stream: Stream) -> list[int]:
    """The pieces that are asked for now."""
    data = bytes(await stream.read())
    stream.consumed(len(data))
    return [int.from_bytes(data[at : at + 4], "big") for at in range(0, len(data), 4)]


def gives(rate: float) -> Give:
    """So many bytes a second, in pieces of as many as come in a second."""

    async def give(stream: Stream) -> None:
        while True:
            for _ in await numbers_of(stream):
                left = HERE + PIECE
                while left:
                    await asyncio.sleep(1.0)
                    await stream.write(left[: int(rate)])
                    left = left[int(rate) :]

    return give


async def stalls(_stream: Stream) -> None:
    """Says nothing, and never ends."""
    await asyncio.Event().wait()


async def drips(stream: Stream) -> None:
    """A byte each half minute: never silent for long enough to be lost for that."""
    await numbers_of(stream)
    await stream.write(HERE)
    while True:
        await asyncio.sleep(30.0)
        await stream.write(b"\0")


def seconds_of(main: Callable[[], Awaitable[None]]) -> float:
    """How long it takes."""

    async def timed() -> float:
        began = asyncio.get_running_loop().time()
        async with asyncio.timeout(10_000.0):
            await main()
        return asyncio.get_running_loop().time() - began

    return run(timed())


def test_colluding_holders_that_stall_do_not_keep_an_honest_one_from_giving_all(tmp_path: Path) -> None:
    first: set[int] = set()

    async def owes(stream: Stream) -> None:
        while len(first) < 2:
            first.update(await numbers_of(stream))
        await stalls(stream)

    async def owes_the_same(stream: Stream) -> None:
        """It is fast until it has the copies of what the other one owes."""
        while True:
            for number in await numbers_of(stream):
                if number in first:
                    await stalls(stream)
                await stream.write(HERE + PIECE)

    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            tasks = []
            for name, give in (("one", owes), ("two", owes_the_same)):
                tasks.append(asyncio.create_task(fetch.fetch(fetch.holder(name, give))))
                await asyncio.sleep(1.0)
            honest = fetch.holder("honest", gives(PIECE_BYTES))
            await fetch.fetch(honest)
            assert fetch.plan.is_done and fetch.given[honest] == len(first) * PIECE_BYTES
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    assert seconds_of(main) < 40, "before any of them is lost for its silence"


def test_a_holder_from_which_a_piece_hardly_comes_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            with pytest.raises(TooSlow, match=r"less than 16\.0 kB/s come from it"):
                await fetch.fetch(fetch.holder("drips", drips))
            assert fetch.plan.next("another", 0.0) is not None, "what it owed goes to others"

    assert 60 < seconds_of(main) < 60 + PIECE_BYTES / LEAST_PIECE_RATE + 1


def test_a_holder_that_says_nothing_is_lost_sooner(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            with pytest.raises(TimeoutError):
                await fetch.fetch(fetch.holder("silent", stalls))

    assert seconds_of(main) == pytest.approx(60, abs=1)


def test_a_slow_holder_without_others_gives_all(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            fetch = Fetch(it)
            await fetch.fetch(fetch.holder("slow", gives(1.05 * LEAST_PIECE_RATE)))
            assert fetch.plan.is_done

    assert seconds_of(main) > PIECES * 200


def test_the_pauses_for_a_rate_of_the_user_count_against_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            now = asyncio.get_running_loop().time()
            fetch = Fetch(it, pace=TokenBucket(rate=LEAST_PIECE_RATE / 4, burst=PIECE_BYTES, now=now))
            await fetch.fetch(fetch.holder("fast", gives(PIECE_BYTES)))
            assert fetch.plan.is_done

    assert seconds_of(main) == pytest.approx((PIECES - 1) * PIECE_BYTES / (LEAST_PIECE_RATE / 4), rel=0.05)
