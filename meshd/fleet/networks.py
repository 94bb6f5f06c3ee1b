"""A separate network for each node on this machine, and a distance between them. Linux.

Each network is a namespace with nothing but loopback. In every one of them a delaying proxy (proxy.py)
listens at the very addresses that the other nodes tell, and connects in the network of the node meant. So
nothing of meshd knows of the distance, and there is no way round it.

A process of its own, for it moves from network to network: `python -m meshd.fleet.networks ROUND_TRIPS`,
until it is ended. Its line of output is a FleetPlace. Works without root where unprivileged user namespaces
are allowed.
"""

import asyncio
import ctypes
import fcntl
import itertools
import json
import os
import shutil
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.sockets import LOOPBACK_HOST, listen_at
from meshd.base.tasks import Owner
from meshd.fleet.proxy import DelayingProxy, ProxyRules, connecting, run_loop
from meshd.link.net.local_addresses import IFF_UP

FIRST_NODE_PORT = 17001  # of the head; its API is at API_PORT
API_PORT = 8090
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # sched.h
_DEVICE = b"wan"
_MOST_QUEUED = 10_000  # packets: a burst of a fast sender must not be lost before it is read
_TUNSETIFF = 0x400454CA  # if_tun.h
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFDSTADDR, _SIOCSIFTXQLEN = 0x8914, 0x8916, 0x8918, 0x8943
_SIOCSIFNETMASK = 0x891C
BATCH = 64  # packets read at once from one device, before the others have their turn


@dataclass(frozen=True, slots=True)
class FleetPlace:
    """The location of the networks: a process and its descriptors, the head's first.

    `api_port` leads to the head's API, from the network of the process that asked for this place.
    """

    pid: int
    networks: tuple[int, ...]
    api_port: int

    def prefix(self, node: int) -> tuple[str, ...]:
        """Return the command that runs a program in the network of a node; 0 is the head."""
        user = (f"--user=/proc/{self.pid}/ns/user", "--preserve-credentials") if os.geteuid() else ()
        return ("nsenter", *user, f"--net=/proc/{self.pid}/fd/{self.networks[node]}", "--")


def listen_address(node: int) -> str:
    """Return where a node listens in its network."""
    return f"{LOOPBACK_HOST}:{FIRST_NODE_PORT + node}"


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


class Networks:
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

    def listen(self, node: int, port: int) -> socket.socket:
        """Return a socket that listens in a node's network."""
        self.enter(node)
        return listen_at(socket.AF_INET, LOOPBACK_HOST, port)

    def connect(self, node: int, port: int) -> socket.socket:
        """Return a socket that connects within a node's network."""
        self.enter(node)
        return connecting(socket.socket(socket.AF_INET, socket.SOCK_STREAM), (LOOPBACK_HOST, port))


def make_device(host: str, *, other: str = "", netmask: str = "") -> int:
    """Create a TUN device with address `host`, up, and loopback too; return its non-blocking descriptor.

    IP packets come out of the descriptor, and go in. The device leads to the one address `other`, or to the
    network of `netmask`. Raises OSError.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE, _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            _configure(sock, _SIOCSIFADDR, _DEVICE, _address(host))
            if other:
                _configure(sock, _SIOCSIFDSTADDR, _DEVICE, _address(other))
            if netmask:
                _configure(sock, _SIOCSIFNETMASK, _DEVICE, _address(netmask))
            _configure(sock, _SIOCSIFTXQLEN, _DEVICE, struct.pack("i", _MOST_QUEUED))
            for name in (_DEVICE, b"lo"):
                _configure(sock, SIOCSIFFLAGS, name, struct.pack("h", IFF_UP))
    except BaseException:
        os.close(device)
        raise
    return device


def _configure(sock: socket.socket, request: int, name: bytes, value: bytes) -> None:
    fcntl.ioctl(sock, request, struct.pack("16s24s", name, value))


def _address(host: str) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(host))


async def serve(count: int, connect: Callable[[Owner, Networks], None]) -> None:
    """Create so many networks, which `connect` connects with one another, and print the place."""
    outside = listen_at(socket.AF_INET, LOOPBACK_HOST, 0)  # before there is no way back
    networks = Networks(count)
    async with Owner() as owner:
        to_api = DelayingProxy(outside, partial(networks.connect, 0, API_PORT), rules=ProxyRules())
        place = FleetPlace(os.getpid(), networks.numbers, outside.getsockname()[1])
        owner.start(to_api.serve(), name="API")
        connect(owner, networks)
        sys.stdout.write(json.dumps(asdict(place)) + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


def _pass_connections(round_trips: Sequence[float], owner: Owner, networks: Networks) -> None:
    for here, there in itertools.permutations(range(len(networks.numbers)), 2):
        port = FIRST_NODE_PORT + there
        proxy = DelayingProxy(
            networks.listen(here, port),
            partial(networks.connect, there, port),
            rules=ProxyRules(one_way=one_way(round_trips, here, there)),
        )
        owner.start(proxy.serve(), name=f"{here} to {there}")


def main(argv: Sequence[str]) -> None:
    """Run `python -m meshd.fleet.networks ROUND_TRIPS`: seconds from the head to each worker, as JSON.

    Between workers it is the mean of theirs.
    """
    round_trips = tuple(map(float, json.loads(argv[0])))
    try:
        run_loop(serve(len(round_trips) + 1, partial(_pass_connections, round_trips)))
    except UserError as error:
        raise SystemExit(error.what) from None


if __name__ == "__main__":
    main(sys.argv[1:])
