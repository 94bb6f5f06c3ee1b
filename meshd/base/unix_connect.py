"""Connects to a unix socket, and waits while its accept queue is full.

One for each request (`Connection: close`). A full accept queue is waited for: asyncio would take such
a connection for made, its first write would fail, and a busy llama-server would look like a dead one.
"""

import asyncio
import socket
from pathlib import Path

QUEUE_FULL_SECONDS = 0.01  # until the next try; the kernel does not tell when there is room


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
