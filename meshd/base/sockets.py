"""Sockets, made in the same way everywhere: listening and accepted ones, and connections to unix sockets."""

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from meshd.base.errors import Broken

# Connections that the kernel holds until somebody accepts them. A flood fills the list while the loop is busy
# elsewhere, and then honest callers wait for a second before they try again.
_BACKLOG = 1024
LOOPBACK_HOST = "127.0.0.1"  # for programs of this machine; others come through meshd
UNIX_BUFFER = 256 << 10
# errno of a socket that could not be made or accepted: this process, or this machine, has no more of them
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
NO_ROOM_SECONDS = 1.0  # until a listener accepts again: something may have been closed
Made = TypeVar("Made", bound=asyncio.BaseProtocol)
QUEUE_FULL_SECONDS = 0.01  # until the next try; the kernel does not tell when there is room


class Sized(Protocol):
    """A socket, or asyncio's view of one."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def listen_at(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Return a blocking TCP socket that listens at the address `host`; port 0: any free one. It blocks.

    Raises OSError; what to tell the user depends on who wanted the port.
    """
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # a restart must not wait for old connections in TIME_WAIT
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # two sockets rather than one for both: then peers' addresses never come as ::ffff:1.2.3.4
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def source_towards(family: int, address: tuple[str, int]) -> str:
    """Return the address from which the kernel would send to `address`; nothing is sent. Raises OSError."""
    with socket.socket(family, socket.SOCK_DGRAM) as asking:
        asking.connect(address)
        return str(asking.getsockname()[0])


def widen(sock: Sized) -> None:
    """Enlarge the buffers of a unix socket: macOS gives 8 KiB, less than the state of one token."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, UNIX_BUFFER)


async def adopt(connection: socket.socket, make: Callable[[], Made]) -> Made:
    """Return `make()`'s protocol, which owns `connection` from now on. Raises Broken; then, or if cancelled,
    the connection is closed.
    """
    try:
        _, made = await asyncio.get_running_loop().connect_accepted_socket(make, connection)
    except OSError as error:
        connection.close()
        raise Broken(f"a connection was lost immediately: {error}") from None
    except BaseException:
        connection.close()
        raise
    return made


async def connect_unix(path: Path, *, pause: float = QUEUE_FULL_SECONDS) -> socket.socket:
    """Return a connected, non-blocking unix socket. Waits while the accept queue is full. Raises OSError."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.setblocking(False)
        while True:
            try:
                connection.connect(str(path))
            except BlockingIOError:
                # Linux says EAGAIN, and polling the socket does not help (unix(7), connect(2))
                await asyncio.sleep(pause)
            else:
                return connection
    except BaseException:
        connection.close()
        raise
