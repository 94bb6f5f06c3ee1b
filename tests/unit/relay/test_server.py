"""One task that wakes what rests: in order of time, whatever was asked for first."""

import asyncio

from meshd.base.tasks import Owner
from meshd.relay.server import Throttle

from tests.conformance.run import until


async def test_the_sooner_is_woken_first() -> None:
    woken: list[str] = []
    throttle = Throttle()
    async with Owner() as owner:
        owner.start(throttle.serve(), name="throttle")
        throttle.rest(0.05, lambda: woken.append("late"))
        await asyncio.sleep(0)
        throttle.rest(0.01, lambda: woken.append("soon"))
        throttle.rest(0.0, lambda: woken.append("now"))
        assert len(throttle) == 3
        await until(lambda: len(woken) == 3)
        owner.cancel()
    assert woken == ["now", "soon", "late"]
    assert len(throttle) == 0


async def test_who_is_woken_may_rest_again() -> None:
    throttle, woken = Throttle(), 0

    def wake() -> None:
        nonlocal woken
        woken += 1
        if woken < 5:
            throttle.rest(0.001, wake)

    async with Owner() as owner:
        owner.start(throttle.serve(), name="throttle")
        wake()
        await until(lambda: woken == 5)
        owner.cancel()
