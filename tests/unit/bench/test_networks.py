"""Packets between networks: each arrives where it is meant for, as late as the distance says, in order."""

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.tasks import Owner

from tests.bench.networks import (
    LONG_SECONDS,
    LOOK_SECONDS,
    MOST_UNDER_WAY,
    QUIET_LOOKS,
    Packets,
    SteppedClock,
    host_of,
)

HEADER = 20


def packet(to: int, mark: bytes = b"") -> bytes:
    """An IPv4 packet for a node, as far as this looks at one."""
    return b"\x45" + bytes(15) + socket.inet_aton(host_of(to)) + mark


def far(here: int, there: int) -> float:
    """Seconds between two of three nodes."""
    return (here + there) / 8


def test_each_is_as_late_as_its_own_way_says() -> None:
    packets = Packets(3, far)
    packets.put(0, packet(2, b"a"), 10.0)
    packets.put(0, packet(1, b"b"), 10.0)
    assert packets.next_at == 10.125
    assert packets.take(10.0) == []
    assert packets.take(10.125) == [(1, packet(1, b"b"))]
    assert packets.take(10.25) == [(2, packet(2, b"a"))]
    assert packets.next_at is None


def test_what_is_for_nobody_here_is_dropped() -> None:
    packets = Packets(2, far)
    others = [
        b"",
        b"\x45",
        packet(7),
        packet(0),
        b"\x60" + packet(1)[1:],
        b"\x45" + bytes(15) + b"\xe0\0\0\xfb",
    ]
    for one in others:
        packets.put(0, one, 0.0)
    assert packets.next_at is None


def test_no_more_than_so_many_are_under_way() -> None:
    packets = Packets(2, far)
    for _ in range(MOST_UNDER_WAY + 5):
        packets.put(0, packet(1), 0.0)
    assert len(packets.take(1.0)) == MOST_UNDER_WAY


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.floats(0, 0.1)), max_size=40))
def test_nothing_is_lost_and_each_pair_keeps_its_order(sent: list[tuple[int, int, float]]) -> None:
    packets, now = Packets(3, far), 0.0
    expected: dict[tuple[int, int], list[bytes]] = {}
    got: dict[tuple[int, int], list[bytes]] = {}
    arrived: list[tuple[int, bytes]] = []
    for number, (here, there, pause) in enumerate(sent):
        now += pause
        data = packet(there, bytes([here, number]))
        packets.put(here, data, now)
        if here != there:
            expected.setdefault((here, there), []).append(data)
        arrived += packets.take(now)
    arrived += packets.take(now + 1.0)
    for there, data in arrived:
        got.setdefault((data[HEADER], there), []).append(data)
    assert got == expected


@given(st.binary(max_size=60), st.integers(0, 1))
def test_no_packet_is_too_odd(data: bytes, source: int) -> None:
    packets = Packets(2, far)
    packets.put(source, data, 0.0)
    assert all(there == 1 - source for there, _ in packets.take(1.0))


class Machine:
    """Nodes that compute or sleep; `steps` are what the clock told, and when."""

    def __init__(self) -> None:
        self.busy = False
        self.steps: list[tuple[int, bool]] = []
        self.clock = SteppedClock(lambda: not self.busy, lambda now, quiet: self.steps.append((now, quiet)))


@pytest.mark.virtual
async def test_it_stands_still_where_nobody_waits() -> None:
    machine = Machine()
    async with Owner() as owner:
        owner.start(machine.clock.serve(), name="clock")
        await asyncio.sleep(60)
        assert machine.steps == []
        owner.cancel()


@pytest.mark.virtual
async def test_it_moves_step_by_step_to_what_is_waited_for() -> None:
    machine = Machine()
    async with Owner() as owner:
        owner.start(machine.clock.serve(), name="clock")
        await machine.clock.until(3.0)
        assert machine.clock.time() == 3.0
        await asyncio.sleep(60)
        assert machine.steps == [(1, True), (2, True), (3, True)]
        owner.cancel()


@pytest.mark.virtual
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
