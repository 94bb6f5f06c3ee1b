"""Cancelled at any await, a link leaves nothing behind: no task, no descriptor, no half-sent piece."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

import pytest
from meshd.base.errors import Closed, EndOfStream
from meshd.link import attempts
from meshd.link.interface import DialError, Link

from tests.conformance.links import RIGS, Ends, Rig
from tests.conformance.run import ANY_RATE, nothing_left, open_files, ticks

pytestmark = pytest.mark.parametrize("rig", RIGS)

T = TypeVar("T")
MOST_AWAITS = 40


@types.coroutine
def cancelled_at(work: Coroutine[Any, Any, T], number: int) -> Generator[object, object, T]:
    """Run `work` and cancel its task at its `number`-th await (from 1), as task.cancel() there would."""
    steps = 0
    send: Callable[[], object] = lambda: work.send(None)  # noqa: E731
    while True:
        try:
            waited = send()
        except StopIteration as end:
            return cast(T, end.value)
        steps += 1
        if steps == number:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            yield waited
            send = lambda: work.send(None)  # noqa: E731
        except BaseException as error:
            send = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731


async def at_every_await(make: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Cancel `make()` at its first await, its second … until it ends before; returns how many there were."""
    for number in range(1, MOST_AWAITS):

        async def one(number: int = number) -> None:
            await cancelled_at(make(), number)

        task = asyncio.get_running_loop().create_task(one())
        try:
            await task
        except asyncio.CancelledError:
            continue
        return number - 1
    raise AssertionError(f"did not end within {MOST_AWAITS} awaits")


async def close_all(ends: Ends) -> None:
    while not ends.accepted.empty():
        await ends.accepted.get_nowait().aclose()


async def test_dial_at_every_turn_of_the_loop(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dial works in tasks of its own, so it is cancelled at turns of the loop rather than at awaits."""
    monkeypatch.setattr(attempts, "ATTEMPTS", ANY_RATE)  # one for each turn of the loop

    async with rig.ends() as ends:
        first, _ = await ends.pair()
        await first.aclose()
        await close_all(ends)
        cancelled, turns = 0, 0
        while True:
            dialling = asyncio.get_running_loop().create_task(ends.dial())
            await ticks(turns)
            if dialling.done():
                await (await dialling).aclose()
                break
            dialling.cancel()
            try:
                await (await dialling).aclose()
            except asyncio.CancelledError:
                cancelled += 1
            turns += 1 if turns < 40 else turns // 8
        assert cancelled >= 3
        await close_all(ends)


async def test_dial_at_every_await(rig: Rig) -> None:
    async with rig.ends() as ends:

        async def dial() -> None:
            link = await ends.dial()
            await link.aclose()

        assert await at_every_await(dial) >= 1
        again, accepted = await ends.pair_after_noise()
        await again.send([b"works"])
        assert await accepted.receive() == b"works"
        await again.aclose()


async def test_accept_at_every_turn_of_the_loop(rig: Rig) -> None:
    """A listener that is stopped while it welcomes somebody closes that connection and stops."""

    async def once(turns: int) -> bool:
        async with rig.ends() as ends:
            dialling = asyncio.get_running_loop().create_task(quiet(ends.dial()))
            await ticks(turns)
            done = dialling.done()
            await ends.stop_listening()
            if not done:
                dialling.cancel()
        try:
            link = await dialling
        except asyncio.CancelledError:
            return False
        if link is not None:
            await link.aclose()
        return done

    files, turns = open_files(), 0
    while not await once(turns):
        await nothing_left(files)
        turns += 1 if turns < 20 else turns // 4


async def quiet(dialling: Coroutine[Any, Any, Link]) -> Link | None:
    """A dial whose listener may go away."""
    try:
        return await dialling
    except DialError:
        return None


async def test_receive_at_every_await(rig: Rig) -> None:
    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        for number in (1, 2, 3):

            async def one(number: int = number) -> bytes:
                return await cancelled_at(dialled.receive(), number)

            reading = asyncio.get_running_loop().create_task(one())
            await ticks(3)
            await accepted.send([b"n"])
            try:
                assert await reading == b"n"
            except asyncio.CancelledError:
                assert await dialled.receive() == b"n"
        await dialled.aclose()


async def test_send_at_every_await(rig: Rig) -> None:
    """A clogged send, cancelled at each of its awaits in turn: whole pieces, in order, or none."""

    async with rig.ends() as ends:
        dialled, accepted = await ends.pair()
        read = asyncio.get_running_loop().create_task(read_to_end(accepted))
        for number in range(1, 120):
            block = number.to_bytes(4, "big") * 10_000

            async def one(number: int = number, block: bytes = block) -> None:
                await cancelled_at(dialled.send([block[:7], block[7:]]), 1 + number % 3)

            try:
                await asyncio.get_running_loop().create_task(one())
            except asyncio.CancelledError:
                continue
        await dialled.aclose()
        got = await read
        blocks = [got[at : at + 40_000] for at in range(0, len(got), 40_000)]
        numbers = [int.from_bytes(block[:4], "big") for block in blocks]
        assert numbers == sorted(set(numbers))
        assert all(block == block[:4] * 10_000 for block in blocks)


async def read_to_end(link: Link) -> bytes:
    got = bytearray()
    try:
        while True:
            got += await link.receive()
    except EndOfStream:
        return bytes(got)


@pytest.mark.parametrize("clogged", [False, True])
async def test_close_at_every_await(rig: Rig, clogged: bool) -> None:
    async with rig.ends() as ends:
        for number in range(1, 6):
            dialled, accepted = await ends.pair()
            if clogged:
                ends.wire.stall()
                await dialled.send([bytes(40_000)])

            async def one(number: int = number, link: Link = dialled) -> None:
                await cancelled_at(link.aclose(), number)

            closing = asyncio.get_running_loop().create_task(one())
            try:
                await closing
            except asyncio.CancelledError:
                pass
            with pytest.raises(Closed):
                await dialled.receive()
            await dialled.aclose()
            ends.wire.flow()
            await accepted.aclose()
