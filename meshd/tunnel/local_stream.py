"""A mesh stream whose bytes go through a direct connection of two nodes on one machine (base/local_way.py).

The mesh stream stays open and decides. Its end confirms the end of the connection, so what ends without it,
as when a daemon is killed, is waited for like a lost link: until the session says what has become of the
peer. When the mesh stream breaks before its end, the connection is cut; after that, the end of the lease cuts
it. Nothing else crosses the mesh stream, and bytes on it break both.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from socket import socket

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.sockets import adopt
from meshd.base.tasks import Owner, first_error
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import MetadataValue, Stream
from meshd.tunnel.local import LocalSocket

LOG = log.get("tunnel")


class LocalStream:
    """Implements Stream over a local connection. Credit is the kernel's, and what LocalSocket holds."""

    def __init__(self, control: Stream, local: LocalSocket) -> None:
        """Send nothing over `control`, the mesh stream, but its end."""
        self._control = control
        self._local = local
        self._ended = asyncio.Event()  # the control stream has, or is broken
        self._broken: MeshdError | None = None

    @property
    def peer(self) -> PeerId:
        return self._control.peer

    @property
    def service(self) -> str:
        return self._control.service

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        return self._control.metadata

    async def accepted(self) -> None:
        await self._control.accepted()

    async def follow_control(self) -> None:
        """Wait for the end of the control stream, and cut the connection if it breaks."""
        try:
            await self._control.read()
            # The peer sends over the link, perhaps because it found no connection: neither way is whole.
            raise RemoteProtocolError("bytes on a stream that has a direct connection", code="local")
        except EndOfStream:
            pass
        except MeshdError as error:
            self._broken = error
            self.reset(Code.BROKEN, error.what)
        self._ended.set()

    async def read(self) -> bytes:
        """Return the next chunk. Raises EndOfStream once both the connection and the mesh stream have ended,
        Broken.
        """
        try:
            return await self._local.read()
        except (EndOfStream, Broken):
            await self._ended.wait()
            self._check()
            raise

    def divert(self, take: Callable[[bytes | memoryview], bool] | None) -> None:
        self._local.divert(None if take is None else lambda data: len(data) if take(data) else 0)

    def try_write(self, data: bytes | memoryview) -> int:
        return len(data) if self._local.try_write(data) else 0

    def consumed(self, count: int) -> None:
        """Do nothing: what has not been read keeps the kernel's buffer full, and that holds up the peer."""

    async def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`. Raises Broken once the mesh stream has ended or broken, too."""
        try:
            await self._local.write(data)
        except Broken:
            await self._ended.wait()
            self._check()
            raise

    def write_eof(self) -> None:
        self._local.write_eof()
        self._control.write_eof()

    def reset(self, code: int, reason: str) -> None:
        self._local.abort()
        self._control.reset(code, reason)

    def _check(self) -> None:
        if self._broken is not None:
            raise Broken(self._broken.what)


@asynccontextmanager
async def carried(control: Stream, direct: socket | None, end: socket) -> AsyncIterator[Stream]:
    """Yield `control`, or its bytes over the connection `direct`, which is ours from now on.

    Raises Broken, and whatever the block raises. `end`: the child's, closed if there is nothing to yield.
    """
    if direct is None:
        yield control
        return
    try:
        direct.setblocking(False)
        local = await adopt(direct, LocalSocket)
    except BaseException:
        end.close()
        control.reset(Code.BROKEN, "the direct connection is gone")
        raise
    LOG.info("tunnel_local", peer=control.peer.short, service=control.service)
    stream = LocalStream(control, local)
    try:
        async with Owner() as owner:
            owner.start(stream.follow_control(), name="local stream")
            yield stream
            # Both ways have ended: let what was written go out.
            local.close()
            await local.wait_closed()
            owner.cancel()
    except ExceptionGroup as group:
        raise first_error(group) from None
    finally:
        local.abort()
