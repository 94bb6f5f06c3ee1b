"""How far nodes are from one another."""

import asyncio

import pytest
from meshd.base.tasks import Owner
from meshd.fleet.networks import (
    LONG_SECONDS,
    LOOK_SECONDS,
    QUIET_LOOKS,
    FleetPlace,
    SteppedClock,
    listen_address,
    one_way,
)

from tests.sim.loop import run


@pytest.mark.parametrize(
    ("here", "there", "seconds"), [(0, 1, 0.010), (2, 0, 0.015), (1, 2, 0.0125), (2, 1, 0.0125)]
)
def test_distances(here: int, there: int, seconds: float) -> None:
    """Between workers it is the mean of theirs."""
    assert one_way((0.020, 0.030), here, there) == pytest.approx(seconds)


def test_each_node_has_an_address_of_its_own() -> None:
    assert len({listen_address(node) for node in range(16)}) == 16


def test_a_program_runs_in_the_network_of_its_node() -> None:
    place = FleetPlace(pid=7, networks=(4, 5), api_port=1)
    assert place.prefix(1)[0] == "nsenter"
    assert "--net=/proc/7/fd/5" in place.prefix(1)


class Machine:
    """Nodes that compute or sleep; `steps` are what the clock told, and when."""

    def __init__(self) -> None:
        self.busy = False
        self.steps: list[tuple[int, bool]] = []
        self.clock = SteppedClock(lambda: not self.busy, lambda now, quiet: self.steps.append((now, quiet)))


def test_it_stands_still_where_nobody_waits() -> None:
    async def main() -> None:
        machine = Machine()
        async with Owner() as owner:
            owner.start(machine.clock.serve(), name="clock")
            await asyncio.sleep(60)
            assert machine.steps == []
            owner.cancel()

    run(main())


def test_it_moves_step_by_step_to_what_is_waited_for() -> None:
    async def main() -> None:
        machine = Machine()
        async with Owner() as owner:
            owner.start(machine.clock.serve(), name="clock")
            await machine.clock.until(3.0)
            assert machine.clock.time() == 3.0
            await asyncio.sleep(60)
            assert machine.steps == [(1, True), (2, True), (3, True)]
            owner.cancel()

    run(main())


def test_it_waits_for_who_computes_but_not_for_ever() -> None:
    async def main() -> None:
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

    run(main())
