"""Options of a TCP socket that carries a link."""

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
