"""Streams of a peer to an allowed local target."""

import asyncio

from meshd.base.errors import Broken
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.tunnel.interface import Inspector
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, pump

CONNECT_SECONDS = 5.0


async def connect_through(
    stream: Stream,
    host: str,
    port: int,
    *,
    secret: bytes = b"",
    counter: Counter,
    inspector: Inspector | None = None,
) -> None:
    """Connect `stream` to the local `host:port`, sending `secret` first; returns when both ways have ended.

    The stream is reset with the reason when the target cannot be reached.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            _transport, local = await loop.create_connection(LocalSocket, host, port)
    except (OSError, TimeoutError) as error:
        stream.reset(Code.BROKEN, f"cannot connect to the service: {error!r}")
        return
    try:
        if secret:
            await local.write(secret)
        await pump(local, stream, counter=counter, inspector=inspector)
        await local.wait_closed()
    except Broken as error:
        stream.reset(Code.BROKEN, error.what)
    finally:
        local.abort()
