"""Opens sockets at `host:port` for any listener, all on one port: in both families if the host is empty."""

import contextlib
import errno
import socket
from collections.abc import Callable, Sequence

from meshd.base.errors import UserError
from meshd.base.hosts import for_resolver

_TRIES = 8  # for one free port in both families at once

Place = tuple[socket.AddressFamily, str]
OpenAt = Callable[[socket.AddressFamily, str, int], socket.socket]
"""A bound socket. Raises OSError."""


class PortTaken(UserError):
    """Another program has `port`; `what` names it where the OS tells."""

    def __init__(self, port: int, host: str, holder: str | None) -> None:
        by = f" by {holder}" if holder else ""
        super().__init__(
            f"port `{port}` on `{host}` is taken{by}",
            hint="stop that program, or choose another port with `--listen HOST:PORT` (0 picks a free one)",
        )
        self.port = port


def open_on_one_port(
    host: str,
    port: int,
    open_at: OpenAt,
    *,
    cannot: Callable[[str, int, OSError], UserError],
    holder: Callable[[str, int], str | None] = lambda _host, _port: None,
) -> list[socket.socket]:
    """Open sockets at `host:port`, all on one port; port 0 picks one.

    An empty host or `::` means every address, in the families that the machine has; a name is looked up,
    which blocks. `holder` names the program that holds a taken port, `cannot` turns any other error into a
    UserError. Raises PortTaken, UserError.
    """
    places = _places(host)
    for _ in range(_TRIES - 1):
        with contextlib.suppress(PortTaken):
            return _open_all(places, port, open_at, cannot, holder)
        if port:
            break
    return _open_all(places, port, open_at, cannot, holder)


def _places(host: str) -> Sequence[Place]:
    if host in ("", "::"):
        return [(socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")]
    try:
        found = socket.getaddrinfo(for_resolver(host), None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UserError(
            f"cannot listen on `{host}`: no address has that name",
            hint="write `--listen IP:PORT` with an address of this machine, or `[::]:PORT` for all",
        ) from None
    return list(dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found))


def _open_all(
    places: Sequence[Place],
    port: int,
    open_at: OpenAt,
    cannot: Callable[[str, int, OSError], UserError],
    holder: Callable[[str, int], str | None],
) -> list[socket.socket]:
    with contextlib.ExitStack() as opened:
        sockets: list[socket.socket] = []
        failure: UserError | None = None
        for family, host in places:
            try:
                sock = opened.enter_context(open_at(family, host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    raise PortTaken(port, host, holder(host, port)) from None
                failure = failure or cannot(host, port, error)
                continue  # "all addresses" on a machine with one family only
            port = sock.getsockname()[1]
            sockets.append(sock)
        if not sockets and failure is not None:
            raise failure
        opened.pop_all()
        return sockets
