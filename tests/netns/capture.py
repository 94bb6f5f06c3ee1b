"""Read the packets that pass an interface: who sends them and where they go. AF_PACKET, packet(7)."""

import ipaddress
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.netns.space import Namespace
from tests.netns.world import Host

ALL = 0x0003  # ETH_P_ALL
_AF_PACKET = 17  # Python has the name on Linux alone
V4, V6 = 0x0800, 0x86DD
BUFFER = 64 << 20


@dataclass(frozen=True, slots=True)
class Packet:
    """One IP packet. `protocol` is IP's number (of the first header after IPv6's)."""

    by: str
    to: str
    protocol: int

    @property
    def local(self) -> bool:
        """Return True if a router leaves it in its network: multicast of the link, broadcast, link-local."""
        address = ipaddress.ip_address(self.to)
        return address.is_multicast or address.is_link_local or self.to == "255.255.255.255"


class Capture:
    """Context manager: remembers headers until asked. What the kernel had no room for is an error."""

    def __init__(self, space: Namespace, device: str) -> None:
        self._space = space
        self._device = device
        self._seen: list[Packet] = []

    def __enter__(self) -> Self:
        self._socket = self._space.socket(_AF_PACKET, socket.SOCK_DGRAM, socket.htons(ALL))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, BUFFER)  # SO_RCVBUFFORCE
        self._socket.bind((self._device, ALL))
        self._socket.setblocking(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def packets(self, senders: Iterable[Host]) -> list[Packet]:
        """All so far that hosts of the bench have sent by their addresses, or whose senders are unknown here.

        Those of the router itself (its own neighbour discovery) have link-local senders and are left out.
        """
        self._fetch()
        mine = {address for host in senders for address in (*host.v4, *host.v6)}
        return [one for one in self._seen if one.by in mine or not _is_link_local(one.by)]

    def _fetch(self) -> None:
        while True:
            try:
                data, place = self._socket.recvfrom(128)
            except BlockingIOError:
                break
            if packet := _parse(place[1], data):
                self._seen.append(packet)
        _, dropped = struct.unpack("=II", self._socket.getsockopt(263, 6, 8))  # SOL_PACKET, PACKET_STATISTICS
        assert not dropped, f"the capture has missed {dropped} packets"


def _is_link_local(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return address.is_link_local or address.is_unspecified


def _parse(kind: int, data: bytes) -> Packet | None:
    if kind == V4 and len(data) >= 20:
        return Packet(str(ipaddress.ip_address(data[12:16])), str(ipaddress.ip_address(data[16:20])), data[9])
    if kind == V6 and len(data) >= 40:
        return Packet(str(ipaddress.ip_address(data[8:24])), str(ipaddress.ip_address(data[24:40])), data[6])
    return None  # ARP
