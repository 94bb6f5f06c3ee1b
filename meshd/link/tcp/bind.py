"""Listening sockets for TCP: which to open for `host:port`, and who has the port when it is taken."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable

from meshd.base.boundary import Contained, Fault
from meshd.base.errors import UserError
from meshd.base.listening import listen_at
from meshd.base.log import get
from meshd.base.port_holder import port_holder

_NOT_A_LISTENER = {errno.EBADF, errno.EINVAL, errno.ENOTSOCK, errno.EFAULT, errno.EOPNOTSUPP}
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_PAUSE_SECONDS = 1.0  # until something has been freed
_TRIES = 8  # for one free port in both families at once

_log = get("link")


class PortTaken(UserError):
    """Another program listens at `port`; `what` names it where the OS tells."""

    def __init__(self, port: int, host: str, holder: str | None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"port `{port}` on `{host}` is taken{by}",
            hint="stop that program, or choose another port with `--listen HOST:PORT` (0 picks a free one)",
        )
        self.port = port


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets that listen at `host:port`, all on one port; port 0 picks one.

    An empty host or `::` means every address, IPv6 (where the machine has it) and IPv4; a name is looked up,
    which blocks. Raises PortTaken, UserError.
    """
    places = _resolve(host)
    for _ in range(_TRIES - 1):
        with contextlib.suppress(PortTaken):
            return _listen_at(places, port)
        if port:
            break
    return _listen_at(places, port)


def _resolve(host: str) -> list[tuple[socket.AddressFamily, str]]:
    if host in ("", "::"):
        return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UserError(
            f"cannot listen on `{host}`: no address has that name",
            hint="write `--listen IP:PORT` with an address of this machine, or `[::]:PORT` for all",
        ) from None
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _listen_at(places: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        failure: UserError | None = None
        for family, host in places:
            try:
                sock = opened.enter_context(listen_at(family, host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortTaken(port, host, port_holder(host, port)) from None
                failure = failure or _cannot(host, port, error)
                continue  # "all addresses" on a machine with one family only
            sock.setblocking(False)
            port = sock.getsockname()[1]
            sockets.append(sock)
        if not sockets and failure is not None:
            raise failure
        opened.pop_all()
        return sockets


async def accept_from(server: socket.socket, fresh: Callable[[], asyncio.BaseProtocol]) -> None:
    """Give each connection that comes in a protocol of its own, until cancelled; then close `server`.

    Not asyncio's own server: when that is closed while a connection is coming in, the socket is lost.
    """
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(server, ready.set)
    try:
        while True:
            await ready.wait()
            ready.clear()
            try:
                connection, _ = server.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                continue  # it has gone away again
            except OSError as error:
                if error.errno in _NOT_A_LISTENER:
                    raise
                if error.errno in _NO_ROOM:
                    _log.warning("accept_paused", why=(error.strerror or "").lower(), seconds=_PAUSE_SECONDS)
                    await asyncio.sleep(_PAUSE_SECONDS)
                continue  # else the network's trouble with that one connection, as Linux tells it here
            try:
                with Contained("network", "connection"):
                    connection.setblocking(False)
                    await loop.connect_accepted_socket(fresh, connection)
            except Fault:
                connection.close()
    finally:
        loop.remove_reader(server)
        server.close()


def _cannot(host: str, port: int, error: OSError) -> UserError:
    hint = ""
    if error.errno == errno.EADDRNOTAVAIL:
        hint = "use an address of this machine, or `[::]:PORT` for all of them"
    elif error.errno == errno.EACCES:
        hint = "choose a port above 1023; lower ones need privileges"
    return UserError(f"cannot listen on `{host}` port `{port}`: {(error.strerror or '').lower()}", hint=hint)
