"""A clock that moves only while nobody computes."""

import asyncio

import pytest
from meshd.base.tasks import Owner
from meshd.fleet.stepped_clock import LONG_SECONDS, LOOK_SECONDS, QUIET_LOOKS, SteppedClock

pytestmark = pytest.mark.virtual


class Machine:
    """Nodes that compute or sleep; `steps` are what the clock told, and when."""

    def __init__(self) -> None:
        self.busy = False
        self.steps: list[tuple[int, bool]] = []
        self.clock = SteppedClock(lambda: not self.busy, lambda now, quiet: self.steps.append((now, quiet)))


async def test_it_stands_still_where_nobody_waits() -> None:
    machine = Machine()
    async with Owner() as owner:
        owner.start(machine.clock.serve(), name="clock")
        await asyncio.sleep(60)
        assert machine.steps == []
        owner.cancel()


async def test_it_moves_step_by_step_to_what_is_waited_for() -> None:
    machine = Machine()
    async with Owner() as owner:
        owner.start(machine.clock.serve(), name="clock")
        await machine.clock.until(3.0)
        assert machine.clock.time() == 3.0
        await asyncio.sleep(60)
        assert machine.steps == [(1, True), (2, True), (3, True)]
        owner.cancel()


async def test_it_waits_for_who_computes_but_not_for_ever() -> None:
    machine = Machine()
    machine.busy = True
    async with Owner() as owner:
        owner.start(machine.clock.serve(), name="clock")
        owner.start(machine.clock.until(2.0), name="who waits")
        await asyncio.sleep(LONG_SECONDS / 2)
        assert machine.steps == []
        await asyncio.sleep(LONG_SECONDS)
        assert machine.steps == [(1, False)]
        machine.busy = False
        await asyncio.sleep((QUIET_LOOKS + 1) * LOOK_SECONDS)
        assert machine.steps == [(1, False), (2, True)]
        owner.cancel()
