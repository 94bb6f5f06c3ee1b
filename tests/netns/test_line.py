"""The emulated line does what its settings say, counted with plain datagrams."""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.netns import probe
from tests.netns.space import PREFIX, Namespace, leftovers, sweep
from tests.netns.wan import Line, Wan, Way
from tests.netns.world import Host, World

SIZE = 1000  # of a datagram's payload
PACKET = SIZE + 28  # with IP and UDP


@contextmanager
def lined(world: World, line: Line) -> Iterator[tuple[Wan, socket.socket, socket.socket]]:
    """A line to a public host; a socket there, and one of another public host that it is connected to."""
    far: Host = world.public("far", line=line)
    near = world.public("near")
    assert far.wan is not None
    with (
        probe.udp_socket(near.space, near.address) as ours,
        probe.udp_socket(far.space, far.address) as theirs,
    ):
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        ours.connect(theirs.getsockname())
        theirs.connect(ours.getsockname())
        yield far.wan, ours, theirs


def echo(ours: socket.socket, theirs: socket.socket) -> float:
    """Seconds of one round trip."""
    began = time.monotonic()
    ours.send(b"x" * SIZE)
    theirs.send(theirs.recv(2048))
    ours.recv(2048)
    return time.monotonic() - began


def drained(ours: socket.socket) -> list[bytes]:
    """Return what has come up to a fence."""
    found = []
    while (data := ours.recv(2048)) != b"fence":
        found.append(data)
    return found


def test_a_perfect_line_changes_nothing(world: World) -> None:
    with lined(world, Line()) as (_, ours, theirs):
        for number in range(200):
            theirs.send(bytes([number]))
        theirs.send(b"fence")
        assert drained(ours) == [bytes([number]) for number in range(200)]


def test_delay_is_one_way_and_adds_up(world: World) -> None:
    with lined(world, Line(up=Way(delay_ms=15), down=Way(delay_ms=25))) as (wan, ours, theirs):
        assert echo(ours, theirs) >= 0.040
        wan.both(Way(delay_ms=30))
        assert echo(ours, theirs) >= 0.060


def test_jitter_keeps_the_order_unless_it_is_told_not_to(world: World) -> None:
    with lined(world, Line(up=Way(jitter_ms=20))) as (wan, ours, theirs):
        sent = [bytes([number]) for number in range(100)]
        for orderly in (True, False):
            wan.set(up=Way(jitter_ms=20, reorder=not orderly))
            for one in sent:
                theirs.send(one)
            got = [ours.recv(2048) for _ in sent]
            assert sorted(got) == sent
            assert (got == sent) == orderly


def test_loss_is_a_share(world: World) -> None:
    with lined(world, Line()) as (wan, ours, theirs):
        came: list[list[bytes]] = []
        # neighbour discovery of IPv6 may take a turn of chance, and all after it are others
        for _ in range(6):
            wan.set(up=Way(loss=0.2), seed=7)
            for number in range(1000):
                theirs.send(number.to_bytes(2, "big"))
            wan.set(up=Way())
            theirs.send(b"fence")
            came.append(drained(ours))
            if came.count(came[-1]) > 1:
                break
    assert 700 < len(came[0]) < 900
    assert came.count(came[-1]) > 1, "the same seed never lost the same twice"


def test_a_full_queue_drops_its_tail(world: World) -> None:
    way = Way(rate_mbit=1.0, queue_bytes=10 * PACKET)
    with lined(world, Line(up=way)) as (wan, ours, theirs):
        for number in range(100):
            theirs.send(bytes([number]) * SIZE)
        first = [ours.recv(2048)[0] for _ in range(8)]
        assert first == list(range(8))
        while wan.counts()[0].queue_full < 50:
            theirs.send(b"x" * SIZE)  # as fast as a sender can: almost all of it is too much
        assert wan.counts()[0].too_big == 0


def test_rate_is_a_bound(world: World) -> None:
    """2 Mbit/s: 50 packets of 8224 bits need 0.2 s."""
    with lined(world, Line(up=Way(rate_mbit=2.0))) as (_, ours, theirs):
        began = time.monotonic()
        for _ in range(50):
            theirs.send(b"x" * SIZE)
        for _ in range(50):
            ours.recv(2048)
        assert time.monotonic() - began >= 49 * PACKET * 8 / 2e6


def test_one_direction_goes_dark(world: World) -> None:
    with lined(world, Line()) as (wan, ours, theirs):
        wan.set(up=Way(blackhole=True))
        theirs.send(b"lost")
        ours.send(b"heard")
        assert theirs.recv(2048) == b"heard"
        wan.set(up=Way())
        theirs.send(b"fence")
        assert drained(ours) == []
        assert wan.counts()[0].lost >= 1


def test_the_cable_is_out_for_a_while(world: World) -> None:
    with lined(world, Line()) as (wan, ours, theirs):
        began = time.monotonic()
        wan.cable_out(0.2)
        ours.setblocking(False)
        tries = 0
        while True:
            theirs.send(b"x")
            tries += 1
            try:
                ours.recv(2048)
                break
            except BlockingIOError:
                wan.counts()  # a round trip to the emulator: not a busy loop of nothing
        assert time.monotonic() - began >= 0.2
        assert tries > 1


def test_too_big_vanishes_without_a_word(world: World) -> None:
    with lined(world, Line(up=Way(max_bytes=1280))) as (wan, ours, theirs):
        for payload in (1280 - 28, 1281 - 28, 1400):
            theirs.send(b"x" * payload)
        theirs.send(b"fence")
        assert [len(data) for data in drained(ours)] == [1280 - 28]
        assert wan.counts()[0].too_big == 2


def test_a_small_mtu_is_told_to_the_sender(world: World) -> None:
    """IP_MTU_DISCOVER, IP_PMTUDISC_DO: the kernel refuses what its own device cannot send."""
    with lined(world, Line(mtu=1280)) as (_, _, theirs):
        theirs.setsockopt(socket.IPPROTO_IP, 10, 2)
        theirs.send(b"x" * (1280 - 28))
        with pytest.raises(OSError, match="too long"):
            theirs.send(b"x" * (1281 - 28))


def test_leftovers_of_a_crash_are_swept() -> None:
    """A process that dies leaves its namespaces; the next world removes them, and only them."""
    with Namespace("kept") as kept:
        dead = Namespace("dead")
        dead.name = f"{PREFIX}-1-0-0-dead"  # process 1 lives, but did not start then
        dead.__enter__()
        assert dead.name in leftovers()
        assert kept.name not in leftovers()
        sweep()
        assert not dead.path.exists()
        assert dead.name not in leftovers()
        assert kept.path.exists()
    assert not kept.path.exists()
