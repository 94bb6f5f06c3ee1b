"""TCP sockets of links: their options, how one connects, and how a port listens."""

import asyncio
import errno
import ipaddress
import socket

from meshd.base.errors import UserError
from meshd.base.socket_owners import port_holder
from meshd.base.sockets import listen_at
from meshd.link.net.one_port import open_on_one_port
from meshd.wire.dialable import Dialable

_OPTIONS: tuple[tuple[int, str, int | bytes], ...] = (
    (socket.IPPROTO_TCP, "TCP_NODELAY", 1),
    (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
    (socket.IPPROTO_TCP, "TCP_KEEPIDLE", 15),  # seconds; pings of the session find most deaths before
    (socket.IPPROTO_TCP, "TCP_KEEPINTVL", 5),
    (socket.IPPROTO_TCP, "TCP_KEEPCNT", 3),
    (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", 30_000),  # ms that sent bytes may stay unconfirmed
    # a window that falls with every lost packet carries a tenth over a path that loses some at random
    (socket.IPPROTO_TCP, "TCP_CONGESTION", b"bbr"),
)
# What IPv4 packets of 1124 bytes carry, the smallest that tunnels in tunnels were seen to leave; and what
# those of 1280 carry, the least of any IPv6 path (RFC 8200, section 5).
MAX_SEGMENT_BYTES = 1084
MAX_SEGMENT_BYTES_V6 = 1220


def tune(sock: socket.socket) -> None:
    """Make TCP quick to send, quick to notice that nobody is there, and steady where packets get lost.

    Options that the platform does not know or allow (BBR may be missing, or reserved for root) are skipped.
    """
    for level, name, value in _OPTIONS:
        number = getattr(socket, name, None)
        if number is None:
            continue
        try:
            sock.setsockopt(level, number, value)
        except OSError:
            continue  # the other side has disconnected already, or the platform takes it on listeners only


def congestion_control(sock: socket.socket) -> str:
    """Return the congestion control of this socket, "" where the kernel does not tell."""
    number = getattr(socket, "TCP_CONGESTION", None)
    if number is None:
        return ""
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, number, 16).split(b"\0")[0].decode("ascii", "replace")
    except OSError:
        return ""


def limit_segments(sock: socket.socket, host: str) -> None:
    """Make both sides send segments that fit everywhere, if called before `sock` connects to `host`.

    Path MTU discovery needs the "too big" of routers, and many networks drop it: then small messages pass and
    large ones vanish, for ever. Linux has a remedy (RFC 4821), but not for one socket. Small segments cost
    one per cent of a line. Private addresses are left as they are: a LAN knows its own MTU.
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


def listen(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen at `host:port`, all on one port; port 0 picks one.

    An empty host or `::` means every address, IPv6 (where the machine has it) and IPv4; a name is looked up,
    which blocks. Raises PortTaken, UserError.
    """
    return open_on_one_port(host, port, _listen_at, cannot=_cannot, holder=port_holder)


def _listen_at(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    sock = listen_at(family, host, port)
    sock.setblocking(False)
    return sock


def _cannot(host: str, port: int, error: OSError) -> UserError:
    hint = ""
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "use an address of this machine, or `[::]:PORT` for all of them"
    elif error.errno == errno.EACCES:
        hint = "choose a port above 1023; lower ones need privileges"
    return UserError(f"cannot listen on `{host}` port `{port}`: {(error.strerror or '').lower()}", hint=hint)
