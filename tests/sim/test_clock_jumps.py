"""Wall clocks of a running mesh jump by years: links, streams, news and bans go on as if nothing happened."""

import asyncio
from collections.abc import Sequence

import pytest
from meshd.peer.interface import PeerState, Stream
from meshd.peer.node import Node

from tests.sim.world import World, WorldNode, pair

YEAR = 365 * 86_400
NOW = 1_790_000_000


class Clock:
    """The wall clock of one node, which a test sets."""

    def __init__(self, node: WorldNode) -> None:
        self.time = NOW
        clock = self

        class Clocked(Node):
            __slots__ = ()

            def wall_clock(self) -> int:
                return clock.time

        node.node.__class__ = Clocked


async def _echo(stream: Stream) -> None:
    while True:
        data = await stream.read()
        await stream.write(bytes(data))
        stream.consumed(len(data))


async def _beat(stream: Stream) -> None:
    await stream.write(b".")
    data = await stream.read()
    stream.consumed(len(data))
    assert bytes(data) == b"."


# seconds by which the clocks of both nodes differ from then on, one step after another
JUMPS: Sequence[Sequence[tuple[int, int]]] = (
    [(20 * YEAR, 0), (0, 0)],
    [(-20 * YEAR, 0), (20 * YEAR, -20 * YEAR)],
    [(-NOW, -NOW), (200 * YEAR, 0)],
)


@pytest.mark.parametrize("jumps", JUMPS)
@pytest.mark.virtual
async def test_nothing_breaks(jumps: Sequence[tuple[int, int]]) -> None:
    """A stream lives on; links are made anew; records and bans made then are heard and hold."""
    async with World() as world:
        nodes = await pair(world)
        clocks = [Clock(node) for node in nodes]
        one, other = nodes
        other.mesh.handle("echo", _echo, allow=lambda _member, _metadata: None)
        stream = one.mesh.open_stream(other.peer, "echo", metadata={})
        await _beat(stream)
        for turn, offsets in enumerate(jumps, start=1):
            for clock, offset in zip(clocks, offsets, strict=True):
                clock.time = NOW + offset
            await _beat(stream)
            world.cable(one.name, other.name).cut()
            await _beat(stream)  # over a new link: the greeting tells the clock
            one.host.shown = one.record(10 + turn)
            one.mesh.record_changed()
            banned = world.node(f"banned-{turn}")
            one.node.learn_bans([world.ban(banned)])
            await other.until(lambda out=banned: other.bans.why_banned(out.chain) is not None)  # type: ignore[misc]
            await other.until(lambda want=10 + turn: _sequence(other, one) == want)  # type: ignore[misc]
            await asyncio.sleep(600)
            await _beat(stream)
            assert other.status_of(one).state is PeerState.CONNECTED
            assert other.status_of(one).resumes == turn
            assert other.status_of(one).clock_offset == offsets[0] - offsets[1]


def _sequence(node: WorldNode, of: WorldNode) -> int:
    record = node.book.record(of.peer)
    return record.sequence if record is not None else 0
