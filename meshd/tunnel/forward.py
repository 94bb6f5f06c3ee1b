"""A peer's service as a listener on this node; and the other end: a peer's streams to a local target."""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, UserError
from meshd.base.socket_owners import port_holder
from meshd.base.sockets import LOOPBACK_HOST, NO_ROOM, NO_ROOM_SECONDS, adopt, listen_at
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.tunnel.interface import OwnerCheck, TunnelStatus
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.on_demand import open_on_demand
from meshd.tunnel.pump import Counter, pump

MAX_CLIENTS = 64
LOG = log.get("tunnel")
_CONNECT_SECONDS = 5.0


class Forward:
    """Listens; each connection becomes a stream of `service` to `peer`.

    `owner_check` is asked about the client's address where the operating system can tell who owns a
    connection. A client that fails it is hung up on.
    """

    def __init__(
        self,
        *,
        mesh: Mesh,
        peer: PeerId,
        service: str,
        metadata: Mapping[str, MetadataValue],
        owner_check: OwnerCheck | None = None,
        on_broken: Callable[[MeshdError], None] = lambda _error: None,
        listen: tuple[str, int] = (LOOPBACK_HOST, 0),
        bulk: bool = False,
    ) -> None:
        """Listen at host and port (0: any free one). Raises UserError when it cannot be had."""
        self._mesh = mesh
        self._peer = peer
        self._service = service
        self._metadata = metadata
        self._owner_check = owner_check
        self._on_broken = on_broken
        self._counter = Counter()
        self._streams = 0
        self._fresh: set[socket.socket] = set()  # taken, and not yet the matter of a task that runs
        self._bulk = bulk
        self._listener = _listen(*listen)
        self.host, self.port = listen[0], int(self._listener.getsockname()[1])
        self._listener.setblocking(False)

    @property
    def endpoint(self) -> str:
        """The host and port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def status(self) -> TunnelStatus:
        """The totals so far."""
        return TunnelStatus(
            peer=self._peer,
            service=self._service,
            listen=self.endpoint,
            streams=self._streams,
            sent_bytes=self._counter.sent,
            received_bytes=self._counter.received,
        )

    def close(self) -> None:
        """Stop listening (also when `serve` was never run)."""
        self._listener.close()

    async def serve(self) -> None:
        """Accept connections until cancelled; then end every one of them."""
        try:
            async with Owner() as owner:
                while True:
                    client = await self._accept()
                    if self._streams >= MAX_CLIENTS:
                        LOG.warning("tunnel_full", service=self._service, count=self._streams)
                        client.close()
                        continue
                    self._streams += 1
                    self._fresh.add(client)
                    owner.start_for("local client", self._client(client), name=f"tunnel {self._service}")
        finally:
            for client in self._fresh:
                client.close()
            self.close()

    async def _accept(self) -> socket.socket:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _address = await loop.sock_accept(self._listener)
            except ConnectionError:
                continue  # it has gone away again
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                LOG.warning("accept_paused", why=(error.strerror or "").lower(), seconds=NO_ROOM_SECONDS)
                await asyncio.sleep(NO_ROOM_SECONDS)
                continue
            return client

    async def _client(self, client: socket.socket) -> None:
        self._fresh.discard(client)
        try:
            local = await adopt(client, LocalSocket)
            try:
                await self._tunnel(local)
            finally:
                local.abort()
        except Broken as error:
            LOG.debug("stream_ended", peer=self._peer.short, service=self._service, why=error.what)
        finally:
            self._streams -= 1

    async def _tunnel(self, local: LocalSocket) -> None:
        if not local.peername[1]:
            return  # it has gone already: nobody can tell whose it was, nor needs to
        if self._owner_check is not None and not await self._owner_check(local.peername, local.sockname):
            LOG.warning("tunnel_foreign_client", service=self._service, remote=local.remote)
            return
        try:
            stream = await open_on_demand(
                self._mesh, self._peer, self._service, metadata=self._metadata, bulk=self._bulk
            )
        except MeshdError as error:
            self._on_broken(error)
            return
        await pump(local, stream, counter=self._counter, on_broken=self._on_broken)
        await local.wait_closed()


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST
        )
        return listen_at(family, str(address[0]), port)
    except OSError as error:
        holder = port_holder(host, port) if error.errno == errno.EADDRINUSE else None
        by = f" by {holder}" if holder else ""
        why = f"the port is taken{by}" if error.errno == errno.EADDRINUSE else (error.strerror or "").lower()
        raise UserError(
            f"cannot listen on `{host}:{port}` for a tunnel: {why}",
            hint="choose another: `--listen HOST:PORT` (port 0 picks a free one)",
        ) from None


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
