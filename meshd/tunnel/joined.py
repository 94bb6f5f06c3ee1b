"""One end of a socketpair, whose other end a child has inherited, joined to one stream.

Nothing listens, so nobody but that child can use it, and no secret has to prove who does.

Between two nodes on one machine the bytes of the stream go through a direct connection (base/local_way.py).
The mesh stream stays open and decides. Its end confirms the end of the connection, so what ends without it,
as when a daemon is killed, is waited for like a lost link: until the session says what has become of the
peer. When the mesh stream breaks before its end, the connection is cut; after that, the end of the lease cuts
it. Nothing else crosses the mesh stream, and bytes on it break both.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.local_way import LOCAL, offered
from meshd.base.sockets import adopt
from meshd.base.tasks import Owner, first_error
from meshd.base.wakeful_loop import WakefulLoop
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, MetadataValue, PeerState, PeerStatus, Stream
from meshd.tunnel.compressed import METADATA, as_agreed
from meshd.tunnel.interface import LISTEN_LOCAL, Flow, Inspector, TunnelStatus
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, pump
from meshd.wire.compressed import Compression

LOG = log.get("tunnel")
ON_DEMAND_SECONDS = 10.0  # for a session with a member that nobody needed before, as most are in a large mesh
LISTEN = "socketpair"  # in status, where others say where they listen


class LocalStream:
    """Implements Stream over a local connection. Credit is the kernel's, and what LocalSocket holds."""

    def __init__(self, control: Stream, local: LocalSocket) -> None:
        """Send nothing over `control`, the mesh stream, but its end."""
        self._control = control
        self.peer, self.service, self.metadata = control.peer, control.service, control.metadata
        self.accepted = control.accepted
        self._local = local
        self._ended = asyncio.Event()  # the control stream has, or is broken
        self._broken: MeshdError | None = None

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
async def carried(control: Stream, direct: socket.socket | None, end: socket.socket) -> AsyncIterator[Stream]:
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


class JoinedTunnel:
    """Leads from `end` to a service of `peer`; implements devices.interface.Tunnel. It owns `end`."""

    def __init__(
        self,
        *,
        mesh: Mesh,
        peer: PeerId,
        service: str,
        metadata: Mapping[str, MetadataValue],
        end: socket.socket,
        endpoint: str,
        inspector: Inspector | None,
        on_broken: Callable[[MeshdError], None],
        compresses: Callable[[], Compression] = lambda: Compression.NOTHING,
        flow: Flow | None = None,
        asks: bool = False,
        is_here: Callable[[], bool] = lambda: False,
    ) -> None:
        """Set up without a stream. `endpoint`: the child's name for it.

        `compresses` is called before the stream is opened; the peer must be known to take compressed ones.
        `flow` is told who waits. `asks` as for `join`. `is_here`: whether the peer is on this machine, and
        takes an offer of a direct connection, which is then made unless the stream is compressed.
        """
        self._mesh = mesh
        self._peer = peer
        self._service = service
        self._metadata = metadata
        self._end: socket.socket | None = end
        self._endpoint = endpoint
        self._inspector = inspector
        self._on_broken = on_broken
        self._compresses = compresses
        self._flow = flow
        self._asks = asks
        self._is_here = is_here
        self._listen = LISTEN
        self._counter = Counter()
        self._streams = 0

    @property
    def endpoint(self) -> str:
        return self._endpoint

    @property
    def status(self) -> TunnelStatus:
        """The totals so far."""
        return TunnelStatus(
            peer=self._peer,
            service=self._service,
            listen=self._listen,
            streams=self._streams,
            sent_bytes=self._counter.sent,
            received_bytes=self._counter.received,
        )

    async def serve(self) -> None:
        """Copy until both ways have ended, or one has broken: then the child finds its end closed."""
        if self._end is None:
            return  # it was closed before it began
        end, self._end = self._end, None
        try:
            try:
                opened, direct = await self._open()
            except BaseException:
                end.close()
                raise
            self._streams = 1
            async with carried(opened, direct, end) as stream:
                await _carry(
                    end,
                    stream,
                    self._inspector,
                    self._counter,
                    self._on_broken,
                    flow=self._flow,
                    asks=self._asks,
                )
        except MeshdError as error:
            self._on_broken(error)
        finally:
            self._streams = 0

    async def _open(self) -> tuple[Stream, socket.socket | None]:
        """Open the stream, and a direct connection beside it if the peer is on this machine."""
        compression = self._compresses()
        metadata: Mapping[str, MetadataValue] = {**self._metadata, **METADATA[compression]}
        wanted = compression is Compression.NOTHING and self._is_here()
        with offered(wanted=wanted) as offer:
            if offer is not None:
                metadata = {**metadata, LOCAL: offer.offered}
            stream = await open_on_demand(self._mesh, self._peer, self._service, metadata=metadata)
            if offer is None:
                return as_agreed(stream), None
            await _accepted(stream)
            direct = offer.take()
        if direct is not None:
            self._listen = LISTEN_LOCAL
        return stream, direct

    def close(self) -> None:
        """Release `end` if `serve` was never run. Idempotent."""
        if self._end is not None:
            self._end.close()
            self._end = None


async def _accepted(stream: Stream) -> None:
    try:
        await stream.accepted()
    except BaseException:
        stream.reset(Code.CANCELLED, "not accepted in time")
        raise


async def join(
    stream: Stream,
    end: socket.socket,
    *,
    inspector: Inspector | None,
    on_broken: Callable[[MeshdError], None],
    flow: Flow | None = None,
    asks: bool = False,
    direct: socket.socket | None = None,
) -> None:
    """Connect a stream that came with `end`, which is ours from now on, past `inspector`, if there is one.

    `flow` is told who waits. `asks`: it is the child that answers, and the peer that asks (see
    base.wakeful_loop.Conversation). `direct`: the connection with a peer on this machine that carries the
    bytes of the stream, ours from now on as well.

    Returns when both ways have ended. Raises RemoteProtocolError for a stream that is compressed in an
    unknown way, Broken.
    """
    try:
        agreed = as_agreed(stream)
    except BaseException:
        end.close()
        if direct is not None:
            direct.close()
        raise
    async with carried(agreed, direct, end) as bytes_of:
        await _carry(end, bytes_of, inspector, Counter(), on_broken, flow=flow, asks=asks)


async def _carry(
    end: socket.socket,
    stream: Stream,
    inspector: Inspector | None,
    counter: Counter,
    on_broken: Callable[[MeshdError], None],
    *,
    flow: Flow | None = None,
    asks: bool = False,
) -> None:
    # Own the child's end, or refuse the stream.
    end.setblocking(False)
    try:
        local = await adopt(end, LocalSocket)
    except BaseException:
        stream.reset(Code.BROKEN, "the child's connection is gone")
        raise
    # Copy until both ways have ended.
    try:
        loop = asyncio.get_running_loop()
        await pump(
            local,
            stream,
            counter=counter,
            inspector=inspector,
            flow=flow,
            on_broken=on_broken,
            passage=loop.conversation(asks=asks) if isinstance(loop, WakefulLoop) else None,
        )
        await local.wait_closed()
    except Broken as error:
        stream.reset(Code.BROKEN, error.what)
        on_broken(error)
    finally:
        local.abort()


async def open_on_demand(
    mesh: Mesh, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
) -> Stream:
    """Open a stream as `Mesh.open_stream`; wait for a session, 10 s at most, if the peer is present without
    one.
    """
    try:
        return mesh.open_stream(peer, service, metadata=metadata, bulk=bulk)
    except Broken:
        status = _status(mesh, peer)
        if status is None or not status.present:
            raise
    try:
        async with asyncio.timeout(ON_DEMAND_SECONDS):
            seen = -1
            while (status := _status(mesh, peer)) is not None and status.state is not PeerState.CONNECTED:
                seen = await mesh.changed(seen)
    except TimeoutError:
        pass
    return mesh.open_stream(peer, service, metadata=metadata, bulk=bulk)


def _status(mesh: Mesh, peer: PeerId) -> PeerStatus | None:
    return next((status for status in mesh.peers() if status.peer == peer), None)
