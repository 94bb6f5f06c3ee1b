"""Options of a TCP socket that carries a link."""

import ipaddress
import socket

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

    What the platform does not know, or does not allow (BBR may be missing, or kept for root), is left.
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
