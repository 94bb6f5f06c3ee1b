"""IP packets between the networks of a fleet, each as late as the distance says: TCP sees the distance.

`Packets` decides and is pure; `Wire` reads and writes the TUN devices.

A TUN device in the network of this process: IP packets come out of its descriptor, and go in. Linux.
"""

import asyncio
import contextlib
import fcntl
import heapq
import itertools
import os
import socket
import struct
from collections.abc import Callable, Sequence

from meshd.link.net.local_addresses import IFF_UP

NAME = b"wan"
MOST_QUEUED = 10_000  # packets: a burst of a fast sender must not be lost before it is read
_TUNSETIFF = 0x400454CA  # if_tun.h
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFDSTADDR, _SIOCSIFTXQLEN = 0x8914, 0x8916, 0x8918, 0x8943
_SIOCSIFNETMASK = 0x891C
NETWORK, NETMASK = "10.77.0.", "255.255.255.0"
PACKET_BYTES = 1 << 16
BATCH = 64  # packets read at once from one device, before the others have their turn
MOST_UNDER_WAY = 1 << 16  # packets; more are lost, as in a full queue of a router
_IPV4, _DESTINATION = 4, slice(16, 20)  # RFC 791, 3.1


def make_device(host: str, *, other: str = "", netmask: str = "") -> int:
    """Create a device with address `host`, up, and loopback too; return its non-blocking descriptor.

    It leads to the one address `other`, or to the network of `netmask`. Raises OSError.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", NAME, _IFF_TUN | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            _configure(sock, _SIOCSIFADDR, NAME, _address(host))
            if other:
                _configure(sock, _SIOCSIFDSTADDR, NAME, _address(other))
            if netmask:
                _configure(sock, _SIOCSIFNETMASK, NAME, _address(netmask))
            _configure(sock, _SIOCSIFTXQLEN, NAME, struct.pack("i", MOST_QUEUED))
            for name in (NAME, b"lo"):
                _configure(sock, SIOCSIFFLAGS, name, struct.pack("h", IFF_UP))
    except BaseException:
        os.close(device)
        raise
    return device


def _configure(sock: socket.socket, request: int, name: bytes, value: bytes) -> None:
    fcntl.ioctl(sock, request, struct.pack("16s24s", name, value))


def _address(host: str) -> bytes:
    return struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(host))


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
