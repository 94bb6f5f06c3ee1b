"""Tell which addresses of this machine belong to a Wi-Fi adapter.

A short round trip there is luck: others use the same air, and some of the next hundred take milliseconds.
Linux says so in sysfs (net/core/net-sysfs.c, net/wireless/core.c), macOS by the interface's functional type,
which `ifconfig -v` prints (bsd/net/if.h, bsd/sys/sockio.h of XNU).
"""

import fcntl
import os
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from meshd.link.net.local_addresses import enumerate_addresses, interface_of

IS_MACOS = sys.platform == "darwin"
LINUX_INTERFACES = Path("/sys/class/net")
_MARKS = ("wireless", "phy80211")  # drivers have either, or both
_GET_FUNCTIONAL_TYPE = 0xC02069AD  # SIOCGIFFUNCTIONALTYPE: _IOWR('i', 173, struct ifreq)
_REQUEST = struct.Struct("=16sI12x")  # ifreq: the interface's name, and its type as the answer
_WIRELESS_TYPES = (3, 4)  # IFRTYPE_FUNCTIONAL_WIFI_INFRA, _WIFI_AWDL


def are_wireless(addresses: Sequence[str]) -> list[bool]:
    """Tell of each of these addresses (`host:port`) whether it belongs to a Wi-Fi adapter of this machine.

    False where that is not known.
    """
    found = enumerate_addresses()
    says = _macos_says if IS_MACOS else _linux_says
    interfaces = [interface_of(address.rpartition(":")[0].strip("[]"), found) for address in addresses]
    known = {interface: says(interface) for interface in {*interfaces} if interface}
    return [known.get(interface, False) for interface in interfaces]


def _linux_says(interface: str) -> bool:
    """Return True if sysfs lists this interface as Wi-Fi."""
    return any(os.path.exists(LINUX_INTERFACES / interface / mark) for mark in _MARKS)  # noqa: PTH110 - never raises


def _macos_says(interface: str) -> bool:
    """Return True if the kernel lists this interface as Wi-Fi."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
            request = _REQUEST.pack(interface.encode(), 0)
            answer = fcntl.ioctl(handle, _GET_FUNCTIONAL_TYPE, request)
    except OSError:
        return False
    return _REQUEST.unpack(answer)[1] in _WIRELESS_TYPES
