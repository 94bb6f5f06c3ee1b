"""A socket that listens, set up alike wherever meshd takes connections: mesh port, API, a child's."""

import socket

BACKLOG = 128  # connections that the kernel holds until somebody accepts them


def listen_at(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """A TCP socket that listens at the address `host`; port 0: any free one. It blocks.

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
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
