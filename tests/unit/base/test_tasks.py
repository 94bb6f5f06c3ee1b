"""An owner of tasks: what its block raises when several things happen at once; timers; the clock of boot."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from meshd.base.errors import Broken, Closed
from meshd.base.tasks import Alarm, Owner, boot_seconds, cancel_and_wait, in_thread

from tests.conformance.run import ticks


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
async def test_a_cancellation_is_not_lost_beside_a_failure(turns: int) -> None:
    """Before, at and after the turn of the loop in which a task of the owner fails."""

    began = asyncio.Event()
    task = asyncio.get_running_loop().create_task(survive(Broken("the network"), began))
    await began.wait()
    await ticks(turns)
    task.cancel()
    done, _ = await asyncio.wait([task], timeout=5)
    assert done, "the cancellation was lost"
    assert task.cancelled()


async def test_a_bug_is_told_even_beside_a_cancellation() -> None:
    began = asyncio.Event()
    task = asyncio.get_running_loop().create_task(survive(ZeroDivisionError("a bug"), began))
    await began.wait()
    await ticks(2)
    task.cancel()
    await asyncio.wait([task])
    with pytest.raises(ExceptionGroup) as failed:
        task.result()
    assert failed.value.subgroup(ZeroDivisionError)


async def test_failures_alone_are_told() -> None:
    with pytest.raises(ExceptionGroup) as failed:
        async with Owner() as owner:
            owner.start(fail(Broken("the network")), name="fails")
    assert failed.value.subgroup(Broken)


async def test_a_timeout_around_works_after_a_failure_was_handled() -> None:
    """Check that what the group asked of its own task does not stay counted."""

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            try:
                async with Owner() as owner:
                    owner.start(fail(Broken("the network")), name="fails")
            except* Broken:
                pass
            await asyncio.Event().wait()


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_nothing_is_begun_while_all_ends(how: str) -> None:
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


async def test_work_in_a_thread_is_done_before_a_cancel_is_heard() -> None:
    """Also what waits for a thread: `asyncio.to_thread` would drop it."""

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


async def test_work_in_a_thread_returns_and_raises() -> None:
    assert await in_thread(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def test_it_rings_at_the_time_that_was_set_last() -> None:
    rang = asyncio.Event()
    alarm = Alarm(rang.set)
    async with Owner() as owner:
        owner.start(alarm.run(), name="alarm")
        alarm.set(_now() + 3600.0)
        alarm.set(_now())
        await rang.wait()
        assert alarm.at is None
        owner.cancel()


async def test_a_time_set_before_it_runs_counts() -> None:
    rang = asyncio.Event()
    alarm = Alarm(rang.set)
    alarm.set(_now())
    async with Owner() as owner:
        owner.start(alarm.run(), name="alarm")
        await rang.wait()
        owner.cancel()


def test_it_may_be_set_anew_while_it_rings() -> None:
    async def main() -> None:
        count = 0
        done = asyncio.Event()

        def ring() -> None:
            nonlocal count
            count += 1
            if count == 3:
                done.set()
            else:
                alarm.set(_now())

        alarm = Alarm(ring)
        alarm.set(_now())
        async with Owner() as owner:
            owner.start(alarm.run(), name="alarm")
            await done.wait()
            owner.cancel()
        assert count == 3

    asyncio.run(main())


async def test_the_owner_gets_what_it_raises() -> None:
    def ring() -> None:
        raise KeyError("broken")

    alarm = Alarm(ring)
    alarm.set(_now())
    with pytest.raises(KeyError, match="broken"):
        await alarm.run()


async def test_none_and_the_end_of_its_owner_silence_it() -> None:
    rung: list[bool] = []
    alarm = Alarm(lambda: rung.append(True))
    async with Owner() as owner:
        task = owner.start(alarm.run(), name="alarm")
        await asyncio.sleep(0)
        alarm.set(_now())
        alarm.set(None)
        await asyncio.sleep(0.01)
        assert not rung
        alarm.set(_now())
        await cancel_and_wait(task)
        alarm.set(_now())
        await asyncio.sleep(0.01)
    assert not rung


def test_the_clock_since_boot_counts_at_least_what_monotonic_time_does() -> None:
    before, booted = time.monotonic(), boot_seconds()
    after, later = time.monotonic(), boot_seconds()
    assert later >= booted
    assert later - booted >= 0
    assert boot_seconds() - booted >= after - before - 0.01
