"""A TUN device in the network of this process: IP packets come out of its descriptor, and go in. Linux."""

import fcntl
import os
import socket
import struct

from meshd.link.net.local_addresses import IFF_UP

NAME = b"wan"
MOST_QUEUED = 10_000  # packets: a burst of a fast sender must not be lost before it is read
_TUNSETIFF = 0x400454CA  # if_tun.h
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
SIOCSIFFLAGS, _SIOCSIFADDR, _SIOCSIFDSTADDR, _SIOCSIFTXQLEN = 0x8914, 0x8916, 0x8918, 0x8943
_SIOCSIFNETMASK = 0x891C
BATCH = 64  # packets read at once from one device, before the others have their turn


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
