"""The lines that links and members cause in a day at home: counted on a virtual clock.

A short run takes three hours of it, and counts them for the day.
"""

import asyncio
import io
import json
import math
import random
from collections import Counter

import pytest
from meshd.base import log
from meshd.link.interface import LinkKind
from meshd.peer.interface import PeerState

from tests.log_day import MOVES, OF_THE_NETWORK, RESTARTS, SLEEPS, WIFI_DROPS
from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, WorldNode
from tests.soak import counts

KINDS = (LinkKind.TCP, LinkKind.RELAY, LinkKind.WEBRTC)
HOUR = 3600.0
HOURS = counts(3, 24)
USES = 480  # of the laptop's streams


class Day:
    """The machines of a home, and what happens to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tower = world.node("tower", role="serve", kinds=KINDS)
        self.garage = world.node("garage", kinds=KINDS)
        self.laptop = world.node("laptop", role="client", kinds=KINDS)
        self.nodes = (self.tower, self.garage, self.laptop)
        for node in self.nodes:
            node.knows(*(other for other in self.nodes if other is not node))
            self.begin(node)

    def begin(self, node: WorldNode) -> None:
        serve_echo(node)
        node.start()

    def wifi(self, *, on: bool) -> None:
        """Take the laptop off the network, or put it back."""
        for other in (self.tower, self.garage):
            for kind in KINDS:
                cable = self.world.cable("laptop", other.name, kind)
                cable.plug() if on else cable.unplug()

    async def drop(self, seconds: float) -> None:
        self.wifi(on=False)
        await asyncio.sleep(seconds)
        self.wifi(on=True)

    async def sleep(self, seconds: float) -> None:
        await self.drop(seconds)
        self.laptop.boot_ahead += seconds

    async def move(self, number: int) -> None:
        self.laptop.move(f"10.9.{number}.1", sequence=100 + number)
        self.laptop.mesh.addresses_changed()
        self.laptop.mesh.record_changed()
        await asyncio.sleep(1)

    async def restart(self) -> None:
        await self.garage.stop()
        await asyncio.sleep(20)
        self.garage.reborn()
        self.begin(self.garage)

    async def use(self) -> None:
        stream = self.laptop.mesh.open_stream(self.tower.peer, "echo", metadata={})
        assert await exchange(stream, b"a request") == b"a request"
        stream.write_eof()


def schedule(rng: random.Random) -> list[tuple[float, str, float]]:
    """Return what happens: when, what, and for how many seconds."""

    def some(count: int, what: str, least: float = 0.0, most: float = 0.0) -> list[tuple[float, str, float]]:
        return [
            (rng.uniform(0, HOURS) * HOUR, what, rng.uniform(least, most))
            for _ in range(math.ceil(count * HOURS / 24))
        ]

    sleeps = some(SLEEPS, "sleep", 0.1 * HOUR, 0.5 * HOUR) + [(16 * HOUR, "sleep", 7 * HOUR)] * (HOURS == 24)
    drops = some(WIFI_DROPS, "drop", 1, 30)
    return sorted([*sleeps, *drops, *some(MOVES, "move"), *some(RESTARTS, "restart"), *some(USES, "use")])


@pytest.mark.virtual
async def test_a_day_at_home_leaves_few_lines() -> None:
    said, loop = io.StringIO(), asyncio.get_running_loop()
    log.set_up(level="info", form="json", stream=said, clock=loop.time)
    try:
        async with World() as world:
            day, moves = Day(world), 0
            began = loop.time()
            await day.laptop.sees(day.tower, PeerState.CONNECTED)
            for at, what, seconds in schedule(random.Random(4711)):
                await asyncio.sleep(max(0.0, began + at - loop.time()))
                if what in ("drop", "sleep"):
                    await (day.drop(seconds) if what == "drop" else day.sleep(seconds))
                    await day.laptop.sees(day.tower, PeerState.CONNECTED, seconds=600)
                elif what == "move":
                    moves += 1
                    await day.move(moves)
                elif what == "restart":
                    await day.restart()
                else:
                    await day.laptop.sees(day.tower, PeerState.CONNECTED, seconds=600)
                    await day.use()
            await asyncio.sleep(max(0.0, began + HOURS * HOUR - loop.time()))
            passed = (loop.time() - began) / HOUR
            world.owner.cancel()
    finally:
        log.set_up(level="warning")
    lines = said.getvalue().splitlines()
    events = Counter(json.loads(line)["event"] for line in lines)
    size = len(said.getvalue().encode()) * 24 / passed
    print(f"{size / 1e3:.0f} kB a day at three nodes together: {dict(events)} in {passed:.1f} h")  # noqa: T201
    # what happened is told, at all three nodes together, and that is not much
    assert passed >= HOURS and events["link_up"] > WIFI_DROPS * HOURS / 24
    assert events["woke_up"] >= 1 and events["peer_gone"] >= 1
    assert size < OF_THE_NETWORK
