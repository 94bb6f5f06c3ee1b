"""Streams of a peer to an allowed local target."""

import asyncio
import os
import socket

from meshd.base.errors import Broken
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, pump

_CONNECT_SECONDS = 5.0


async def connect_through(stream: Stream, target: tuple[str, int], *, counter: Counter) -> None:
    """Connect `stream` to the local host and port `target`; return when both ways have ended.

    The stream is reset with the reason when the target cannot be reached. `counter` gets the bytes that pass.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _transport, local = await loop.create_connection(LocalSocket, *target)
    except (OSError, TimeoutError) as error:
        stream.reset(Code.BROKEN, f"cannot connect to the service: {_in_words(error)}")
        return
    try:
        await pump(local, stream, counter=counter)
        await local.wait_closed()
    except Broken as error:
        stream.reset(Code.BROKEN, error.what)
    finally:
        local.abort()


def _in_words(error: OSError) -> str:
    """Return the system's own words: what asyncio adds names a place that the other side must not learn."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return "its name was not found" if isinstance(error, socket.gaierror) else "nothing answers there"
