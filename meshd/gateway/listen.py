"""Binds the API's port, or reports clearly why it cannot."""

import asyncio
import errno
import socket

from meshd.base.errors import UserError
from meshd.base.hosts import is_loopback
from meshd.base.listening_socket import listen_at
from meshd.base.port_holder import port_holder


async def resolve(host: str) -> list[tuple[socket.AddressFamily, str]]:
    """Addresses to listen on for `host`, each once. Raises UserError."""
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"cannot find an address for `{host}` to listen on",
            hint="use 127.0.0.1 for this machine only, 0.0.0.0 for all networks",
        ) from error
    families = (socket.AF_INET, socket.AF_INET6)
    return list(dict.fromkeys((item[0], str(item[4][0])) for item in found if item[0] in families))


def all_loopback(addresses: list[tuple[socket.AddressFamily, str]]) -> bool:
    """True when nobody beyond this machine reaches any of them."""
    return all(is_loopback(address) for _, address in addresses)


def bind(addresses: list[tuple[socket.AddressFamily, str]], port: int) -> list[socket.socket]:
    """Listening sockets on one port for all addresses; port 0 picks a free one.

    A name with an address of a family that this machine lacks is bound to the others. Raises UserError.
    """
    bound: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, address in addresses:
            try:
                listener = listen_at(family, address, port)
                listener.setblocking(False)
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise _explained(error, address, port) from error
                lacking = error
                continue
            bound.append(listener)
            port = listener.getsockname()[1]
        if not bound:
            raise _explained(lacking or OSError(), addresses[0][1] if addresses else "", port)
    except BaseException:
        for listener in bound:
            listener.close()
        raise
    return bound


def _explained(error: OSError, address: str, port: int) -> UserError:
    if error.errno == errno.EADDRINUSE:
        who = port_holder(address, port)
        by = f" by {who}" if who else ""
        return UserError(
            f"port `{port}` on `{address}` is taken{by}",
            hint="choose another with `--port N`, or `--port 0` for any free one",
        )
    if error.errno == errno.EACCES:
        return UserError(
            f"port `{port}` on `{address}` needs privileges that this user lacks",
            hint="choose a port above 1023",
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
        return UserError(
            f"this machine has no address `{address}`", hint="use 127.0.0.1, 0.0.0.0 or one of its addresses"
        )
    what = (error.strerror or "unknown reason").lower()
    return UserError(
        f"cannot listen on `{address}` port `{port}`: {what}", hint="check `--host` and `--port`"
    )
