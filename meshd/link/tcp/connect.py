"""Making a TCP connection whose segments pass every path, before anything is known of the path.

Path MTU discovery needs the "too big" of routers, and many networks drop it: then small messages pass and
large ones vanish, for ever. Linux has a remedy (RFC 4821), but not for one socket; so the dialer asks for
segments that fit everywhere. That costs one per cent of a line.
"""

import asyncio
import ipaddress
import socket

from meshd.wire.dialable import Dialable

# What IPv4 packets of 1124 bytes carry, the smallest that tunnels in tunnels were seen to leave; and what
# those of 1280 carry, the least of any IPv6 path (RFC 8200, section 5).
MAX_SEGMENT_BYTES = 1084
MAX_SEGMENT_BYTES_V6 = 1220


def limit_segments(sock: socket.socket, host: str) -> None:
    """Make both sides send no larger segments; call it before `sock` connects to the address `host`.

    Private addresses are left as they are: a LAN knows its own MTU.
    """
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_private or address.is_link_local:
        return
    most = MAX_SEGMENT_BYTES if address.version == 4 else MAX_SEGMENT_BYTES_V6
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, most)
    except OSError:
        return  # not on this platform: as it was before


async def connect(place: Dialable) -> socket.socket:
    """Return a connected, non-blocking socket. Raises OSError."""
    host = place.host
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        limit_segments(sock, host)
        await asyncio.get_running_loop().sock_connect(sock, (host, place.port))
    except BaseException:
        sock.close()
        raise
    return sock
