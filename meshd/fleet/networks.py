"""A separate network for each node on this machine, and a distance between them. Linux.

Each network is a namespace with nothing but loopback. In every one of them a delaying proxy (proxy.py)
listens at the very addresses that the other nodes tell, and connects in the network of the node meant. So
nothing of meshd knows of the distance, and there is no way round it. As a *wire* each network has a TUN
device instead, and packets are delayed between them (wire.py): then TCP knows of the distance as well.

A process of its own, for it moves from network to network: `python -m meshd.fleet.networks ORDERS`, until it
is ended. Its line of output is a Place. Works without root where unprivileged user namespaces are allowed.
"""

import asyncio
import ctypes
import fcntl
import json
import os
import shutil
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.sockets import LOOPBACK_HOST, listen_at
from meshd.base.tasks import Owner
from meshd.fleet.proxy import Counts, DelayingProxy, ProxyRules, connecting, run_loop
from meshd.fleet.wire import NETMASK, SIOCSIFFLAGS, Packets, Wire, host_of, make_device
from meshd.link.net.local_addresses import IFF_UP

QUIET_LOOKS = 4  # in which nothing may run, one after another
LOOK_SECONDS = 0.01
LONG_SECONDS = 1.5  # of computing, after which time goes on all the same
_BUSY = frozenset("RD")  # proc_pid_stat(5): running or runnable, waiting for a disk
FIRST_NODE_PORT = 17001  # of the head; its API is at API_PORT
API_PORT = 8090
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # sched.h


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


@dataclass(frozen=True, slots=True)
class NetworkOrders:
    """`round_trips`: from the head to each worker, in seconds; between workers it is the mean of theirs.

    `wire`: packets are delayed, not connections. `stepped`: all nodes are one half round trip apart, and time
    goes on only while none of them computes (SteppedClock); what passes in each step is printed.
    """

    round_trips: tuple[float, ...]
    wire: bool = False
    stepped: bool = False


@dataclass(frozen=True, slots=True)
class FleetPlace:
    """The location of the networks: a process and its descriptors, the head's first.

    `api_port` leads to the head's API, from the network of the process that asked for this place.
    """

    pid: int
    networks: tuple[int, ...]
    api_port: int
    wire: bool = False

    def prefix(self, node: int) -> tuple[str, ...]:
        """Return the command that runs a program in the network of a node; 0 is the head."""
        user = (f"--user=/proc/{self.pid}/ns/user", "--preserve-credentials") if os.geteuid() else ()
        return ("nsenter", *user, f"--net=/proc/{self.pid}/fd/{self.networks[node]}", "--")


def listen_address(node: int, *, wire: bool = False) -> str:
    """Return where a node listens in its network."""
    return f"{host_of(node) if wire else LOOPBACK_HOST}:{FIRST_NODE_PORT + node}"


def one_way(round_trips: Sequence[float], here: int, there: int) -> float:
    """Return the seconds from one node to another; 0 is the head."""
    between = [round_trips[node - 1] for node in (here, there) if node]
    return sum(between) / len(between) / 2


def need_namespaces() -> None:
    """Raise UserError where there cannot be network namespaces."""
    if sys.platform != "linux" or shutil.which("nsenter") is None:
        raise UserError(
            "simulated distance needs Linux and nsenter",
            hint="run the nodes on two machines, or put `meshd bench latency --proxy` between programs",
        )


class _Networks:
    """The networks that this process made; it is in one of them from now on."""

    def __init__(self, count: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if os.geteuid() != 0:
            self._become_root()
        self.numbers = tuple(self._make() for _ in range(count))

    def _check(self, result: int) -> None:
        if result != 0:
            reason = os.strerror(ctypes.get_errno()).lower()
            raise UserError(f"the system refused a network namespace: {reason}")

    def _become_root(self) -> None:
        """Become root of a user namespace only, in which files keep their owners."""
        user, group = os.geteuid(), os.getegid()
        self._check(self._libc.unshare(CLONE_NEWUSER))
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="ascii")

    def _make(self) -> int:
        self._check(self._libc.unshare(CLONE_NEWNET))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
        return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def enter(self, node: int) -> None:
        """Enter a node's network: new sockets belong there; existing ones stay where they are."""
        self._check(self._libc.setns(self.numbers[node], CLONE_NEWNET))

    def device(self, node: int) -> int:
        """Create a TUN device in a node's network. Raises UserError."""
        self.enter(node)
        try:
            return make_device(host_of(node), netmask=NETMASK)
        except OSError as error:
            raise UserError(f"cannot create a TUN device: {(error.strerror or '').lower()}") from None

    def listen(self, node: int, port: int) -> socket.socket:
        self.enter(node)
        return listen_at(socket.AF_INET, LOOPBACK_HOST, port)

    def connect(self, node: int, port: int) -> socket.socket:
        self.enter(node)
        return connecting(socket.socket(socket.AF_INET, socket.SOCK_STREAM), (LOOPBACK_HOST, port))


async def _serve(orders: NetworkOrders) -> None:
    outside = listen_at(socket.AF_INET, LOOPBACK_HOST, 0)  # before there is no way back
    networks = _Networks(len(orders.round_trips) + 1)
    async with Owner() as owner:
        to_api = DelayingProxy(outside, partial(networks.connect, 0, API_PORT), rules=ProxyRules())
        place = FleetPlace(os.getpid(), networks.numbers, outside.getsockname()[1], orders.wire)
        owner.start(to_api.serve(), name="API")
        if orders.wire:
            _carry_packets(owner, networks, orders)
        else:
            _pass_connections(owner, networks, orders)
        sys.stdout.write(json.dumps(asdict(place)) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _carry_packets(owner: Owner, networks: _Networks, orders: NetworkOrders) -> None:
    nodes = range(len(networks.numbers))
    packets = Packets(len(nodes), partial(one_way, orders.round_trips))
    wire = Wire([networks.device(node) for node in nodes], packets)
    owner.start(wire.serve(), name="wire")


def _pass_connections(owner: Owner, networks: _Networks, orders: NetworkOrders) -> None:
    counts = Counts()
    nodes = range(len(networks.numbers))
    clock = SteppedClock(partial(all_sleep, networks.numbers), _Steps(counts).say) if orders.stepped else None
    if clock is not None:
        owner.start(clock.serve(), name="clock")
    for here in nodes:
        for there in nodes:
            if here != there:
                port = FIRST_NODE_PORT + there
                way = 1.0 if orders.stepped else one_way(orders.round_trips, here, there)
                rules = ProxyRules(one_way=way)
                proxy = DelayingProxy(
                    networks.listen(here, port),
                    partial(networks.connect, there, port),
                    rules=rules,
                    counts=counts,
                    clock=clock,
                )
                owner.start(proxy.serve(), name=f"{here} to {there}")


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


def main(argv: Sequence[str]) -> None:
    """Run `python -m meshd.fleet.networks ORDERS` (JSON)."""
    orders = json.loads(argv[0])
    try:
        run_loop(
            _serve(
                NetworkOrders(
                    tuple(map(float, orders["round_trips"])), bool(orders["wire"]), bool(orders["stepped"])
                )
            )
        )
    except UserError as error:
        raise SystemExit(error.what) from None


if __name__ == "__main__":
    main(sys.argv[1:])
