"""Streams of a peer to an allowed local target."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

from meshd.base.errors import Broken, MeshdError
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.tunnel.compressed import as_agreed
from meshd.tunnel.interface import Flow, Inspector, LocalWeights, Target
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, pump, run_both
from meshd.tunnel.stock_worker import FilledCopy

_CONNECT_SECONDS = 5.0


async def connect_through(
    stream: Stream,
    target: Target,
    *,
    secret: bytes = b"",
    counter: Counter | None = None,
    inspector: Inspector | None = None,
    flow: Flow | None = None,
    weights: LocalWeights | None = None,
    on_broken: Callable[[MeshdError], None] = lambda _error: None,
) -> None:
    """Connect `stream` to the local `target`, sending `secret` first; returns when both ways have ended.

    The stream is reset with the reason when the target cannot be reached; `on_broken` as in `pump`.
    `counter` gets the bytes that pass. `weights` are for a stock rpc-server, and need the inspector that
    knows its protocol. Raises RemoteProtocolError for a stream that is compressed in an unknown way.
    """
    stream = as_agreed(stream)
    counter = Counter() if counter is None else counter
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            local = await _connect(target)
    except (OSError, TimeoutError) as error:
        stream.reset(Code.BROKEN, f"cannot connect to the service: {_in_words(error)}")
        return
    try:
        if secret:
            await local.write(secret)
        if inspector is not None and weights is not None:
            copy = FilledCopy(local, stream, counter=counter, inspector=inspector, weights=weights, flow=flow)
            await run_both(local, stream, copy.keep_sending(), copy.keep_receiving(), on_broken)
        else:
            await pump(local, stream, counter=counter, inspector=inspector, flow=flow, on_broken=on_broken)
        await local.wait_closed()
    except Broken as error:
        stream.reset(Code.BROKEN, error.what)
    finally:
        local.abort()


def _in_words(error: OSError) -> str:
    """As the system says it: what asyncio adds names a place that is no business of the other side."""
    if error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return "its name was not found" if isinstance(error, socket.gaierror) else "nothing answers there"


async def _connect(target: Target) -> LocalSocket:
    loop = asyncio.get_running_loop()
    if isinstance(target, Path):
        transport, local = await loop.create_unix_connection(LocalSocket, str(target))
        # On Linux connect() says EAGAIN where too many wait, and asyncio takes that for a connection.
        if transport.get_extra_info("peername") is None:
            transport.abort()
            raise ConnectionRefusedError(errno.ECONNREFUSED, "too many connections wait there")
    else:
        _transport, local = await loop.create_connection(LocalSocket, *target)
    return local
