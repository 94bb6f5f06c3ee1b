"""Ports and unix sockets for children: one that already listens, handed to the child as a descriptor.

Nothing can come between, as it could with the number of a port that was free at the moment of asking.
"""

import socket
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.listening import listen_at, listen_in

HOST = "127.0.0.1"  # what is beyond this machine comes through meshd


def listening_socket() -> socket.socket:
    """A TCP socket that listens on any free port of 127.0.0.1, not inheritable until it is passed.

    Give its number in ChildSpec.pass_fds, and close it here when the child shall be its only holder.
    Raises UserError when the system has none left.
    """
    try:
        return listen_at(socket.AF_INET, HOST, 0)
    except OSError as error:
        raise UserError(f"cannot listen on `{HOST}`: {error.strerror or error}") from error


def listening_path(folder: Path) -> tuple[socket.socket, Path]:
    """A unix socket that listens at a new path in `folder`, not inheritable until it is passed.

    Whoever asked removes the file. Raises UserError.
    """
    try:
        return listen_in(folder)
    except OSError as error:
        raise UserError(
            f"cannot make a socket in `{folder}`: {error.strerror or error}",
            hint="see that its disk is not full, and that this user may write there",
        ) from error
