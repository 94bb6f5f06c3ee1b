"""Make a TCP connection before anything is known of the path: with segments that pass every path."""

import asyncio
import socket

from meshd.link.tcp.options import limit_segments
from meshd.wire.dialable import Dialable


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
