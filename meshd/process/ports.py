"""Ports for children: a socket that already listens, handed to the child as a descriptor.

Nothing can come between, as it could with the number of a port that was free at the moment of asking.
"""

import errno
import socket

from meshd.base.errors import UserError
from meshd.base.port_holder import port_holder

BACKLOG = 128


def listening_socket(host: str = "127.0.0.1", *, port: int = 0, backlog: int = BACKLOG) -> socket.socket:
    """A TCP socket that listens on `host`:`port` (0: any free one), not inheritable until it is passed.

    Give its number in ChildSpec.pass_fds, and close it here when the child shall be its only holder.
    `host` is an address, IPv4 or IPv6. Raises UserError that names who holds the port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # connections of a child that just died linger in TIME_WAIT and must not hold its successor up
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from error
    return listener


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    where = f"`{host}:{port}`" if ":" not in host else f"`[{host}]:{port}`"
    match error.errno:
        case errno.EADDRINUSE:
            holder = port_holder(host, port)
            by = f" by {holder}" if holder is not None else ""
            return UserError(
                f"{where} is already in use{by}", hint="stop that program, or choose another port"
            )
        case errno.EACCES | errno.EPERM:
            return UserError(
                f"not allowed to listen on {where}", hint="choose a port above 1023, or another address"
            )
        case errno.EADDRNOTAVAIL:
            return UserError(f"cannot listen on {where}: this machine does not have that address")
        case _:
            return UserError(f"cannot listen on {where}: {error.strerror or error}")
