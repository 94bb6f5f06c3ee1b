"""The timer of a connection: the time set last counts, its owner gets what it raises, nothing rings after."""

import asyncio

import pytest
from meshd.base.alarm import Alarm
from meshd.base.tasks import Owner, cancel_and_wait


def _now() -> float:
    return asyncio.get_running_loop().time()


def test_it_rings_at_the_time_that_was_set_last() -> None:
    async def main() -> None:
        rang = asyncio.Event()
        alarm = Alarm(rang.set)
        async with Owner() as owner:
            owner.start(alarm.run(), name="alarm")
            alarm.set(_now() + 3600.0)
            alarm.set(_now())
            await rang.wait()
            assert alarm.at is None
            owner.cancel()

    asyncio.run(main())


def test_a_time_set_before_it_runs_counts() -> None:
    async def main() -> None:
        rang = asyncio.Event()
        alarm = Alarm(rang.set)
        alarm.set(_now())
        async with Owner() as owner:
            owner.start(alarm.run(), name="alarm")
            await rang.wait()
            owner.cancel()

    asyncio.run(main())


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


def test_the_owner_gets_what_it_raises() -> None:
    async def main() -> None:
        def ring() -> None:
            raise KeyError("broken")

        alarm = Alarm(ring)
        alarm.set(_now())
        with pytest.raises(KeyError, match="broken"):
            await alarm.run()

    asyncio.run(main())


def test_none_and_the_end_of_its_owner_silence_it() -> None:
    async def main() -> None:
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

    asyncio.run(main())
