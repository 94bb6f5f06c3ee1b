"""Listening sockets for TCP: which to open for `host:port`, and who has the port when it is taken."""

import asyncio
import errno
import socket
from collections.abc import Callable

from meshd.base.errors import UserError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.log import get
from meshd.base.socket_owners import port_holder
from meshd.base.sockets import NO_ROOM, NO_ROOM_SECONDS, listen_at
from meshd.link.net.one_port import open_on_one_port

_NOT_A_LISTENER = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EFAULT, errno.EOPNOTSUPP}
_REFUSED_IN_A_TURN = 16

_log = get("link")


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


def _anybody(host: str) -> bool:
    return True


async def accept_from(
    server: socket.socket,
    fresh: Callable[[], asyncio.BaseProtocol],
    *,
    hears: Callable[[str], bool] = _anybody,
) -> None:
    """Give each connection that comes in a protocol of its own, until cancelled; then close `server`.

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
            # Hand it to a protocol of its own; a bug there costs that connection only.
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


def _cannot(host: str, port: int, error: OSError) -> UserError:
    hint = ""
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "use an address of this machine, or `[::]:PORT` for all of them"
    elif error.errno == errno.EACCES:
        hint = "choose a port above 1023; lower ones need privileges"
    return UserError(f"cannot listen on `{host}` port `{port}`: {(error.strerror or '').lower()}", hint=hint)
