"""Measure a mesh of many members: `.venv/bin/python -m tests.sim.scale --members 10 50 200 1000`.

Real nodes (mesh, sessions, news, book) over links in memory, on a virtual clock; a row for each size:

- how long until all know of a member that joins by way of one of them (and it knows all), of a ban, and of a
  changed address;
- what an idle node says and hears: bytes of its news streams in both directions, with the lengths before the
  messages. Pings of the links are not gossip and not in it;
- what a member costs that changes its record and its signs of life as fast as its neighbours listen: checks
  by the neighbour that has most of them, and by another node on average; and the bytes of that one.

It exits with 1 where a mesh does not keep to the bounds below.

Two things are cheaper than in truth, or a run would take hours: a signature is verified once for all nodes
(each check counts), and links are pinged every 15 s instead of 1.5, and missed for as much longer.
"""

import argparse
import asyncio
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from meshd.base import log
from meshd.base.admission import Rate
from meshd.base.errors import Broken, Busy, Refused
from meshd.base.peer_limits import LIVES_OF_ONE, NEWS_CHECKS, NEWS_OF_ONE
from meshd.identity import keys, membership, record
from meshd.identity.record import Presence
from meshd.mux.config import MuxConfig
from meshd.peer import links, path_selection
from meshd.peer.messages import MessageStream
from meshd.peer.news import KNOWN_COST
from meshd.peer.presence import DEGREE
from meshd.wire.news import PresenceNews, RecordNews

from tests.sim.gossip import Teller
from tests.sim.loop import run
from tests.sim.world import World, WorldNode

SETTLE_SECONDS = 20.0  # for the sessions that are kept
CALM_SECONDS = 70.0  # until what was on its way is told, and sessions that joining took are idle
IDLE_SECONDS = 120.0
FLOOD_SECONDS = 30.0
LATEST = 60.0  # nothing is waited for longer
MOST_SECONDS = 15.0  # until all know of something
BELOW_IDLE_BYTES = 200.0  # a second and node
SLOWER = 10  # than in truth, a link is pinged
LINKS = MuxConfig(ping_interval=SLOWER * 1.5, dead_after=SLOWER * 4.5)
SILENT_AFTER = SLOWER * path_selection.SILENT_AFTER


@dataclass(frozen=True, slots=True)
class Row:
    """Virtual seconds; bytes a second and node; `flood_*`: a second and node."""

    members: int
    join: float
    ban: float
    address: float
    idle: float
    flood_checks_near: float
    flood_checks: float
    flood_bytes: float
    real: float


def _in_flood(rate: Rate) -> float:
    """Return what it lets through a second, on average over a flood."""
    return rate.per_second + rate.burst / FLOOD_SECONDS


def broken(row: Row) -> list[str]:
    """The bounds that this mesh did not keep to: what, how much, how much at most."""
    told = _in_flood(NEWS_OF_ONE) + _in_flood(LIVES_OF_ONE)
    near = _in_flood(NEWS_CHECKS) + 1 / FLOOD_SECONDS
    # each once, and known already from the other neighbours
    others = told * (1 + DEGREE * KNOWN_COST) + 0.1
    bounds = (
        ("join", row.join, MOST_SECONDS),
        ("ban", row.ban, MOST_SECONDS),
        ("address", row.address, MOST_SECONDS),
        ("idle", row.idle, math.nextafter(BELOW_IDLE_BYTES, 0.0)),
        ("flood: checks next to it", row.flood_checks_near, near),
        ("flood: checks of another", row.flood_checks, others),
    )
    return [
        f"{row.members} members, {what}: {found:g}, at most {most:g}"
        for what, found, most in bounds
        if not found <= most  # what cannot be told was not kept
    ]


class Meter:
    """A count of what all nodes said over their news, and of the signatures that were checked."""

    def __init__(self) -> None:
        self.sent = 0
        self.checks = 0


@contextmanager
def metered() -> Iterator[Meter]:
    """Everything that is said and checked is counted, and checked once in truth."""
    meter = Meter()
    send = MessageStream.send
    verify = functools.lru_cache(maxsize=1 << 20)(keys.verify)
    read = functools.lru_cache(maxsize=1 << 14)(record._read.__wrapped__)

    async def counted_send(self: MessageStream, message: bytes) -> None:
        meter.sent += 4 + len(message)
        await send(self, message)

    def counted_verify(*args: object) -> bool:
        meter.checks += 1
        return verify(*args)

    with (
        mock.patch.object(MessageStream, "send", counted_send),
        mock.patch.object(membership, "verify", counted_verify),
        mock.patch.object(record, "verify", counted_verify),
        mock.patch.object(record, "_read", read),
        mock.patch.object(path_selection, "SILENT_AFTER", SILENT_AFTER),
        mock.patch.object(links, "SILENT_AFTER", SILENT_AFTER),
    ):
        yield meter


async def settled(world: World, count: int, flooder: WorldNode) -> list[WorldNode]:
    """So many nodes that know each other's records, with the sessions that they keep."""
    nodes = [flooder, *(world.node(f"n{number}") for number in range(1, count))]
    records = [node.record() for node in nodes]
    for node in nodes:
        for one in records:
            node.book.add(one)
    for node in nodes:
        node.start()
    await asyncio.sleep(SETTLE_SECONDS)
    return nodes[1:]


async def until_all(nodes: Sequence[WorldNode], ready: Callable[[WorldNode], bool]) -> float:
    """Virtual seconds until it holds for all. Raises TimeoutError."""
    began = asyncio.get_running_loop().time()
    left = list(nodes)
    async with asyncio.timeout(LATEST):
        while left:
            await asyncio.sleep(0.1)
            left = [node for node in left if not ready(node)]
    return asyncio.get_running_loop().time() - began


async def join(world: World, nodes: list[WorldNode]) -> float:
    """A newcomer that knows one member: until all know it, and it knows all."""
    newcomer = world.node("newcomer")
    newcomer.knows(nodes[len(nodes) // 2])
    newcomer.start()
    took = await until_all(nodes, lambda node: node.book.record(newcomer.peer) is not None)
    took += await until_all([newcomer], lambda node: len(node.book.peers()) == len(nodes) + 1)
    nodes.append(newcomer)
    return took


async def ban(world: World, nodes: list[WorldNode]) -> float:
    """Return how long the ban of a connected member takes until all have dropped it."""
    out = nodes.pop(len(nodes) // 3)
    nodes[0].node.learn_bans([world.ban(out)])
    return await until_all(nodes, lambda node: node.book.record(out.peer) is None and len(node.bans) == 1)


async def address(nodes: list[WorldNode]) -> float:
    """Return how long all take to know the new address of a member that moves."""
    mover = nodes[len(nodes) // 4]
    mover.move("10.99.0.1", sequence=2)
    mover.mesh.addresses_changed()
    mover.mesh.record_changed()

    def knows(node: WorldNode) -> bool:
        told = node.book.record(mover.peer)
        return node is mover or (told is not None and told.sequence == 2)

    return await until_all(nodes, knows)


async def idle(meter: Meter, nodes: Sequence[WorldNode]) -> float:
    """Bytes a second and node, said and heard, while nothing happens."""
    await asyncio.sleep(CALM_SECONDS)  # what the events before made is over
    before = meter.sent
    await asyncio.sleep(IDLE_SECONDS)
    return 2 * (meter.sent - before) / len(nodes) / IDLE_SECONDS


class Flood:
    """A member that tells its neighbours what it may sign, as fast as they take it."""

    def __init__(self, world: World, meter: Meter) -> None:
        self.meter = meter
        self.node = world.node("flooder")
        self.teller = Teller(self.node)
        self.sent = 0

    def _words(self) -> Iterator[bytes]:
        node = self.node
        for number in itertools.count(2):
            yield RecordNews(node.record(number).encode()).encode()
            sign = Presence.sign(node.key, mesh=node.world.root.mesh, sequence=number, count=1)
            yield PresenceNews((sign.to_bytes(),)).encode()

    async def _tell(self, stream: MessageStream, words: Sequence[bytes]) -> None:
        try:
            for word in words:
                await stream.send(word)
                self.sent += 4 + len(word)
        except (Broken, Busy, Refused):
            return

    async def run(self, nodes: Sequence[WorldNode]) -> tuple[float, float, float]:
        """A second: checks by the neighbour with most, by another node of what others told it, its bytes."""
        words = list(itertools.islice(self._words(), 3700))
        streams = list(self.teller.streams())
        before, said = self.meter.sent, self._checked(nodes)
        heard = [_checked_of(node, self.node) for node in nodes]
        floods = [self.node.world.owner.start(self._tell(stream, words), name="flood") for stream in streams]
        await asyncio.sleep(FLOOD_SECONDS)
        for flood in floods:
            flood.cancel()
        near = max(_checked_of(node, self.node) - had for node, had in zip(nodes, heard, strict=True))
        others = (self._checked(nodes) - said) / len(nodes)
        told = 2 * (self.meter.sent - before - self.sent) / len(nodes)
        return near / FLOOD_SECONDS, others / FLOOD_SECONDS, told / FLOOD_SECONDS

    def _checked(self, nodes: Sequence[WorldNode]) -> float:
        """Return the checks that all made of what others than the flooder told them."""
        all_limits = (node.mesh.news.limits._of for node in nodes)
        return sum(one.checked for of in all_limits for peer, one in of.items() if peer != self.node.peer)


def _checked_of(node: WorldNode, teller: WorldNode) -> float:
    limits = node.mesh.news.limits._of.get(teller.peer)
    return limits.checked if limits is not None else 0.0


async def measure(count: int) -> Row:
    """One row; the flooder is one of the members."""
    began = time.monotonic()
    with metered() as meter:
        async with World(LINKS) as world:
            flood = Flood(world, meter)
            nodes = await settled(world, count, flood.node)
            joined = await join(world, nodes)
            banned = await ban(world, nodes)
            moved = await address(nodes)
            quiet = await idle(meter, nodes)
            near, checks, said = await flood.run(nodes)
    real = time.monotonic() - began
    return Row(count, joined, banned, moved, quiet, near, checks, said, real)


HEAD = """\
| members | join | ban | address | idle | flood: checks next to it | of another | bytes of another | took |
|---|---|---|---|---|---|---|---|---|"""


def line(row: Row) -> str:
    """A row of the table in docs/scale.md."""
    return (
        f"| {row.members} | {row.join:.1f} s | {row.ban:.1f} s | {row.address:.1f} s | {row.idle:.0f} B/s "
        f"| {row.flood_checks_near:.0f}/s | {row.flood_checks:.2f}/s | {row.flood_bytes:.0f} B/s "
        f"| {row.real:.0f} s |"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a bound was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--members", type=int, nargs="+", default=[10, 50, 200, 1000])
    members = parser.parse_args(argv).members
    log.set_up(level="error")
    sys.stdout.write(HEAD + "\n")
    lost: list[str] = []
    for count in members:
        row = run(measure(count))
        sys.stdout.write(line(row) + "\n")
        sys.stdout.flush()
        lost += broken(row)
    sys.stderr.writelines(f"{one}\n" for one in lost)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
