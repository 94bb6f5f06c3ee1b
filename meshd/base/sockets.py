"""Sockets, made in the same way everywhere: listening and accepted ones, and connections to unix sockets."""

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from meshd.base.errors import Broken
from meshd.base.fault_boundary import NO_ROOM, Contained, Fault
from meshd.base.log import get

# Connections that the kernel holds until somebody accepts them. A flood fills the list while the loop is busy
# elsewhere, and then honest callers wait for a second before they try again.
_BACKLOG = 1024
LOOPBACK_HOST = "127.0.0.1"  # for programs of this machine; others come through meshd
UNIX_BUFFER = 256 << 10
NO_ROOM_SECONDS = 1.0  # until a listener accepts again: something may have been closed
_NOT_A_LISTENER = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EFAULT, errno.EOPNOTSUPP}
_REFUSED_IN_A_TURN = 16
Made = TypeVar("Made", bound=asyncio.BaseProtocol)
QUEUE_FULL_SECONDS = 0.01  # until the next try; the kernel does not tell when there is room
_log = get("link")


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


def _anybody(host: str) -> bool:
    return True


async def accept_from(
    server: socket.socket,
    fresh: Callable[[], asyncio.BaseProtocol],
    *,
    hears: Callable[[str], bool] = _anybody,
) -> None:
    """Serve each incoming connection by a new protocol, until cancelled; then close `server`.

    Connections from a host that `hears` refuses are closed at once: a flood costs little. Not asyncio's own
    server: when that is closed while a connection is coming in, the socket is lost.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(server, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            # Accept one connection; errors of it, or a lack of descriptors, do not end the listener.
            try:
                connection = _next_heard(server, hears)
            except (BlockingIOError, InterruptedError, ConnectionError):
                continue  # it has gone away again
            except OSError as error:
                if error.errno in _NOT_A_LISTENER:
                    raise
                if error.errno in NO_ROOM:
                    _log.warning("accept_paused", why=(error.strerror or "").lower(), seconds=NO_ROOM_SECONDS)
                    await asyncio.sleep(NO_ROOM_SECONDS)
                continue  # else the network's trouble with that one connection, as Linux tells it here
            if connection is None:
                continue
            # Hand it to a new protocol; a bug there costs that connection only.
            try:
                with Contained("network", "connection"):
                    connection.setblocking(False)
                    await loop.connect_accepted_socket(fresh, connection)
            except Fault:
                connection.close()
    finally:
        loop.remove_reader(server)
        server.close()


def _next_heard(server: socket.socket, hears: Callable[[str], bool]) -> socket.socket | None:
    """Accept a connection, closing those that are not heard; None after 16 of these: others have a turn.

    Raises OSError, BlockingIOError when there is none.
    """
    for _ in range(_REFUSED_IN_A_TURN):
        connection, place = server.accept()
        if hears(str(place[0])):
            return connection
        connection.close()
    return None


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
