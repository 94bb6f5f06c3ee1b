"""Takes ownership of accepted connections: their sockets are closed in every case."""

import asyncio
import socket
from collections.abc import Callable
from typing import TypeVar

from meshd.base.errors import Broken

Made = TypeVar("Made", bound=asyncio.BaseProtocol)


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
