"""When netcheck looks: at the start, after changes but not too often, every 20 minutes; and who is told."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from meshd.base.tasks import Owner
from meshd.netcheck.interface import ConnectionFacts, NetReport, Observations, Outcome
from meshd.netcheck.probe import NetWatch, Servers
from meshd.wire.netfacts import Mapped, Udp
from meshd.wire.stun import Endpoint

pytestmark = pytest.mark.virtual

UP = (ConnectionFacts(Endpoint("20.1.0.2", 443), Outcome.OK),)


class Stage:
    """A watch whose network is made up."""

    def __init__(self) -> None:
        self.checks: list[float] = []
        self.told: list[NetReport] = []
        self.router = (Mapped.UNKNOWN, "")
        self.seen = Observations(udp_asked=1)
        self.watch = NetWatch(
            servers=Servers(("stun.example:3478",)),
            hosts=lambda: ("192.168.1.10",),
            router=lambda: self.router,
            changed=self.told.append,
            observe=self._observe,
        )

    async def _observe(self, servers: Servers, hosts: Sequence[str]) -> tuple[Observations, tuple[str, ...]]:
        assert servers.stun == ("stun.example:3478",) and hosts == ("192.168.1.10",)
        self.checks.append(asyncio.get_running_loop().time() - 1000)
        await asyncio.sleep(2)
        return self.seen, ("gone.example:1",)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Serve while the block runs."""
        async with Owner() as owner:
            owner.start(self.watch.serve(), name="watch")
            yield
            owner.cancel()


async def test_it_looks_at_once_and_every_twenty_minutes() -> None:
    stage = Stage()
    async with stage.serving():
        assert stage.watch.report() is None
        await asyncio.sleep(2500)
        assert [round(at, -2) for at in stage.checks] == [0, 1200, 2400]
        report = stage.watch.report()
        assert report is not None and report.seconds == 2.0 and report.unresolved == ("gone.example:1",)
    assert len(stage.told) == 1, "the same facts are told once"


async def test_it_looks_soon_after_changes_but_not_at_each() -> None:
    stage = Stage()
    async with stage.serving():
        await asyncio.sleep(100)
        for _ in range(100):
            stage.watch.poke()
            await asyncio.sleep(0.1)
        await asyncio.sleep(50)
        # the first change is looked at within a second, those that came after it half a minute later
        assert len(stage.checks) == 3 and stage.checks[1] < 105 and stage.checks[2] >= 130
        await asyncio.sleep(100)
        stage.watch.poke()
        await asyncio.sleep(100)
        assert len(stage.checks) == 4


async def test_a_change_is_told() -> None:
    stage = Stage()
    async with stage.serving():
        await asyncio.sleep(100)
        stage.seen = Observations(udp_asked=1, connections=UP)
        stage.watch.poke()
        await asyncio.sleep(100)
    assert [report.facts.udp for report in stage.told] == [Udp.UNKNOWN, Udp.BLOCKED]


async def test_what_the_router_knows_needs_no_other_look() -> None:
    stage = Stage()
    async with stage.serving():
        stage.watch.router_changed()
        await asyncio.sleep(100)
        stage.router = (Mapped.BEHIND_NAT, "100.64.0.9")
        stage.watch.router_changed()
        stage.watch.router_changed()
    assert len(stage.checks) == 1
    assert [report.facts.mapped for report in stage.told] == [Mapped.UNKNOWN, Mapped.BEHIND_NAT]
    assert stage.told[1].facts.carrier_nat


async def test_who_asks_while_it_looks_gets_that_answer() -> None:
    stage = Stage()
    async with stage.serving():
        await asyncio.sleep(1)
        async with Owner() as owner:
            asked = [owner.start(stage.watch.check(), name="ask") for _ in range(3)]
        assert len({id(task.result()) for task in asked}) == 1
    assert len(stage.checks) == 1
