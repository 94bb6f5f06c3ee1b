"""An owner of tasks: what its block raises when several things happen at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from meshd.base.errors import Broken, Closed
from meshd.base.tasks import Owner, in_thread

from tests.conformance.run import run, ticks


async def fail(error: Exception) -> None:
    raise error


async def survive(error: Exception, began: asyncio.Event) -> str:
    """A task of a kind that there is much of: what goes wrong inside is handled, and it goes on."""
    try:
        async with Owner() as owner:
            began.set()
            await asyncio.sleep(0)
            owner.start(fail(error), name="fails")
            await asyncio.Event().wait()
    except* Broken:
        pass
    await asyncio.Event().wait()  # what it does next
    return "never"


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_is_not_lost_beside_a_failure(turns: int) -> None:
    """Before, at and after the turn of the loop in which a task of the owner fails."""

    async def work() -> None:
        began = asyncio.Event()
        task = asyncio.get_running_loop().create_task(survive(Broken("the network"), began))
        await began.wait()
        await ticks(turns)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        assert done, "the cancellation was lost"
        assert task.cancelled()

    run(work())


def test_a_bug_is_told_even_beside_a_cancellation() -> None:
    async def work() -> None:
        began = asyncio.Event()
        task = asyncio.get_running_loop().create_task(survive(ZeroDivisionError("a bug"), began))
        await began.wait()
        await ticks(2)
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(ExceptionGroup) as failed:
            task.result()
        assert failed.value.subgroup(ZeroDivisionError)

    run(work())


def test_failures_alone_are_told() -> None:
    async def work() -> None:
        with pytest.raises(ExceptionGroup) as failed:
            async with Owner() as owner:
                owner.start(fail(Broken("the network")), name="fails")
        assert failed.value.subgroup(Broken)

    run(work())


def test_a_timeout_around_works_after_a_failure_was_handled() -> None:
    """What the group asked of its own task must not stay counted."""

    async def work() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                try:
                    async with Owner() as owner:
                        owner.start(fail(Broken("the network")), name="fails")
                except* Broken:
                    pass
                await asyncio.Event().wait()

    run(work())


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_nothing_is_begun_while_all_ends(how: str) -> None:
    """Tasks elsewhere may ask for it at that moment: they get an error that they handle, not a bug's."""
    ending, told = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await told.wait()

    async def block(owners: list[Owner]) -> None:
        async with Owner() as owner:
            owners.append(owner)
            owner.start(slow_to_end(), name="slow")
            await asyncio.sleep(0)
            if how == "failed":
                owner.start(fail(Broken("the network")), name="fails")
            await asyncio.Event().wait()

    async def work() -> None:
        owners: list[Owner] = []
        task = asyncio.get_running_loop().create_task(block(owners))
        await ticks(3)
        task.cancel()
        await ending.wait()
        with pytest.raises(Closed):
            owners[0].start(fail(Broken("never begun")), name="late")
        told.set()
        await asyncio.wait([task])
        assert task.cancelled() or isinstance(task.exception(), ExceptionGroup)

    run(work())


def test_work_in_a_thread_is_done_before_a_cancel_is_heard() -> None:
    """Also what waits for a thread: `asyncio.to_thread` would drop it."""

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        may_go_on, done = threading.Event(), []

        def work(number: int) -> None:
            may_go_on.wait(10.0)
            done.append(number)

        works = [asyncio.ensure_future(in_thread(lambda number=number: work(number))) for number in range(2)]  # type: ignore[misc]
        await ticks(3)
        for one in works:
            one.cancel()
        await ticks(3)
        assert not any(one.done() for one in works)
        may_go_on.set()
        await asyncio.wait(works)
        assert all(one.cancelled() for one in works)
        assert done == [0, 1]

    run(main())


def test_work_in_a_thread_returns_and_raises() -> None:
    async def main() -> None:
        assert await in_thread(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await in_thread(lambda: 1 // 0)

    run(main())
