"""Networks of a fleet in which TCP sees the distance, or in which distance is counted in rounds. Linux.

As a *wire* each network has a TUN device, and packets are delayed between them. *Stepped*, all nodes are one
half round trip apart, and time goes on only while none of them computes. So the number of rounds between two
moments is the number of messages that had to wait for one another, on a fast machine as on a busy one. What
TCP itself would add (a window that has to grow, a handshake of TLS in packets) is not in it.

A process of its own, as meshd/fleet/networks.py is: its own file with KIND and ROUND_TRIPS.
"""

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.fleet.fleet import Fleet, FleetSpec, apart
from meshd.fleet.networks import BATCH, FIRST_NODE_PORT, FleetPlace, Networks, make_device, one_way, serve
from meshd.fleet.proxy import Counts, DelayingProxy, ProxyRules, run_loop

NETWORK, NETMASK = "10.77.0.", "255.255.255.0"
PACKET_BYTES = 1 << 16
MOST_UNDER_WAY = 1 << 16  # packets; more are lost, as in a full queue of a router
_IPV4, _DESTINATION = 4, slice(16, 20)  # RFC 791, 3.1
QUIET_LOOKS = 4  # in which nothing may run, one after another
LOOK_SECONDS = 0.01
LONG_SECONDS = 1.5  # of computing, after which time goes on all the same
_BUSY = frozenset("RD")  # proc_pid_stat(5): running or runnable, waiting for a disk


class WiredFleet(Fleet):
    """Nodes between which packets are delayed, also where the distance is 0."""

    is_on_loopback = False

    async def connect(self, owner: Owner) -> FleetPlace:
        return await _apart(owner, "wire", self.spec)

    def listen_address(self, number: int) -> str:
        return f"{host_of(number)}:{FIRST_NODE_PORT + number}"


class SteppedFleet(Fleet):
    """Nodes at a distance that is counted in rounds; what passes in each is in `networks.log`."""

    async def connect(self, owner: Owner) -> FleetPlace:
        return await _apart(owner, "stepped", self.spec)


async def _apart(owner: Owner, kind: str, spec: FleetSpec) -> FleetPlace:
    argv = (sys.executable, "-P", __file__, kind, json.dumps(list(spec.round_trips)))
    return await apart(owner, argv, spec.folder)


def workers_alike(
    folder: Path,
    cache: Path,
    model: Path,
    *,
    count: int,
    round_trip: float,
    threads: int,
    head_options: tuple[str, ...] = (),
) -> FleetSpec:
    """Return a fleet of `count` workers with the model's file, all as far away, each with `threads`
    threads.
    """
    return FleetSpec(
        folder=folder,
        cache=cache,
        model=model,
        worker_model=model,
        round_trips=[round_trip] * count,
        head_options=head_options,
        worker_options=[("--threads", str(threads))] * count,
    )


def host_of(node: int) -> str:
    """Return the address of a node."""
    return f"{NETWORK}{node + 1}"


class Packets:
    """The packets under way. `now` is in seconds of any monotonic clock."""

    def __init__(self, nodes: int, one_way: Callable[[int, int], float]) -> None:
        """Set up empty. `one_way`: seconds from a node to another."""
        self._nodes = {socket.inet_aton(host_of(node)): node for node in range(nodes)}
        self._one_way = one_way
        self._under_way: list[tuple[float, int, int, bytes]] = []
        self._number = itertools.count()

    @property
    def next_at(self) -> float | None:
        """The time when the next packet arrives; None: nothing is under way."""
        return self._under_way[0][0] if self._under_way else None

    def put(self, source: int, packet: bytes, now: float) -> None:
        """Put in a packet that a node sent; it is dropped if no node here has its address."""
        there = self._nodes.get(packet[_DESTINATION]) if packet and packet[0] >> 4 == _IPV4 else None
        if there is None or there == source or len(self._under_way) >= MOST_UNDER_WAY:
            return
        arrives = now + self._one_way(source, there)
        heapq.heappush(self._under_way, (arrives, next(self._number), there, packet))

    def take(self, now: float) -> list[tuple[int, bytes]]:
        """Return the packets that have arrived by now, with their nodes, in order."""
        arrived = []
        while self._under_way and self._under_way[0][0] <= now:
            _, _, there, packet = heapq.heappop(self._under_way)
            arrived.append((there, packet))
        return arrived


class Wire:
    """The TUN devices of all nodes. Needs a loop with a fine clock (proxy.run_loop)."""

    def __init__(self, devices: Sequence[int], packets: Packets) -> None:
        """Take the descriptors, which this object owns from now on."""
        self._devices = devices
        self._packets = packets
        self._came = asyncio.Event()

    async def serve(self) -> None:
        """Carry packets until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            for node, device in enumerate(self._devices):
                loop.add_reader(device, self._read, node)
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(self._packets.next_at):
                        await self._came.wait()
                self._came.clear()
                self._write(loop.time())
        finally:
            for device in self._devices:
                loop.remove_reader(device)
                os.close(device)

    def _read(self, node: int) -> None:
        now = asyncio.get_running_loop().time()
        for _ in range(BATCH):
            try:
                packet = os.read(self._devices[node], PACKET_BYTES)
            except OSError:
                break
            self._packets.put(node, packet, now)
        self._came.set()

    def _write(self, now: float) -> None:
        for node, packet in self._packets.take(now):
            with contextlib.suppress(OSError):  # its network has gone
                os.write(self._devices[node], packet)


class SteppedClock:
    """Time in half round trips; moves by one when `is_quiet` and somebody waits for a later time."""

    def __init__(self, is_quiet: Callable[[], bool], stepped: Callable[[int, bool], None]) -> None:
        """Start at 0. `stepped` is told each new time, and whether it came because all were quiet."""
        self._is_quiet = is_quiet
        self._stepped = stepped
        self._now = 0
        self._moved = asyncio.Condition()
        self._waited_for: list[float] = []

    def time(self) -> float:
        """Return how many half round trips have passed."""
        return float(self._now)

    async def until(self, at: float) -> None:
        """Wait until the clock shows `at`."""
        self._waited_for.append(at)
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: self._now >= at)
        finally:
            self._waited_for.remove(at)

    async def serve(self) -> None:
        """Move the clock until cancelled."""
        loop = asyncio.get_running_loop()
        quiet, moved_at = 0, loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            quiet = quiet + 1 if self._is_quiet() else 0
            if not any(at > self._now for at in self._waited_for):
                moved_at = loop.time()
                continue
            # who computes for long must still be heard, or links are taken for dead
            if quiet < QUIET_LOOKS and loop.time() - moved_at < LONG_SECONDS:
                continue
            async with self._moved:
                self._now += 1
                self._stepped(self._now, quiet >= QUIET_LOOKS)
                self._moved.notify_all()
            quiet, moved_at = 0, loop.time()


def all_sleep(networks: Sequence[int]) -> bool:
    """Return True if every thread of every other process in these networks (their descriptors) sleeps."""
    inodes = {os.fstat(network).st_ino for network in networks}
    own = str(os.getpid())
    processes = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit() and folder.name != own)
    return all(_sleeps(process) for process in processes if _is_in(process, inodes))


def _is_in(process: Path, inodes: set[int]) -> bool:
    try:
        return (process / "ns" / "net").stat().st_ino in inodes
    except OSError:  # it has ended, or is another user's
        return False


def _sleeps(process: Path) -> bool:
    try:
        for thread in (process / "task").iterdir():
            state = (
                (thread / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
            )
            if state in _BUSY:
                return False
    except OSError:  # it ends just now: that is no rest
        return False
    return True


class _Steps:
    """The printer of a stepped clock's steps: when each was, and the bytes sent since the one before."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._before = 0

    def say(self, now: int, quiet: bool) -> None:
        total = self._counts.up + self._counts.down
        step = {"step": now, "at": time.time(), "quiet": quiet, "bytes": total - self._before}
        self._before = total
        sys.stdout.write(json.dumps(step) + "\n")
        sys.stdout.flush()


def _carry_packets(round_trips: Sequence[float], owner: Owner, networks: Networks) -> None:
    # A cable waits for no processor: else, where threads compute on all of them, a packet waits for the end
    # of their time slices, some milliseconds.
    if sys.platform == "linux":
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    nodes = range(len(networks.numbers))
    wire = Wire(
        [_device(networks, node) for node in nodes], Packets(len(nodes), partial(one_way, round_trips))
    )
    owner.start(wire.serve(), name="wire")


def _device(networks: Networks, node: int) -> int:
    """Create a TUN device in a node's network. Raises UserError."""
    networks.enter(node)
    try:
        return make_device(host_of(node), netmask=NETMASK)
    except OSError as error:
        raise UserError(f"cannot create a TUN device: {(error.strerror or '').lower()}") from None


def _count_rounds(owner: Owner, networks: Networks) -> None:
    counts = Counts()
    clock = SteppedClock(partial(all_sleep, networks.numbers), _Steps(counts).say)
    owner.start(clock.serve(), name="clock")
    for here, there in itertools.permutations(range(len(networks.numbers)), 2):
        port = FIRST_NODE_PORT + there
        proxy = DelayingProxy(
            networks.listen(here, port),
            partial(networks.connect, there, port),
            rules=ProxyRules(one_way=1.0),
            counts=counts,
            clock=clock,
        )
        owner.start(proxy.serve(), name=f"{here} to {there}")


if __name__ == "__main__":
    kind, given = sys.argv[1:]
    found = tuple(map(float, json.loads(given)))
    try:
        run_loop(serve(len(found) + 1, partial(_carry_packets, found) if kind == "wire" else _count_rounds))
    except UserError as error:
        raise SystemExit(error.what) from None
