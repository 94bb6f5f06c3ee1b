"""Ports for children: a socket that already listens, handed to the child as a descriptor.

Nothing can come between, as it could with the number of a port that was free at the moment of asking.
"""

import socket

from meshd.base.errors import UserError
from meshd.base.listening_socket import LOOPBACK_HOST, listen_at


def listening_socket() -> socket.socket:
    """Return a TCP socket that listens on any free port of 127.0.0.1, not inheritable until it is passed.

    Give its number in ChildSpec.pass_fds, and close it here when the child is to be its only holder. Raises
    UserError when the system has none left.
    """
    try:
        return listen_at(socket.AF_INET, LOOPBACK_HOST, 0)
    except OSError as error:
        raise UserError(f"cannot listen on `{LOOPBACK_HOST}`: {error.strerror or error}") from error
