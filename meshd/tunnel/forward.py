"""A peer's service as a listener on this node: on loopback, or at a unix socket."""

import asyncio
import errno
import hmac
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from meshd.base import log
from meshd.base.errors import Broken, EndOfStream, MeshdError, UserError
from meshd.base.listening_socket import NO_ROOM, NO_ROOM_SECONDS, listen_at, listen_in
from meshd.base.port_holder import port_holder
from meshd.base.tasks import Owner
from meshd.base.unix_peer import allowed, peer_of
from meshd.identity.keys import PeerId
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.tunnel.compressed import COMPRESSED, CompressedStream
from meshd.tunnel.interface import OwnerCheck, SavedWeights, Target, TunnelStatus, Watched, Watching
from meshd.tunnel.local import LocalSocket, adopt
from meshd.tunnel.on_demand import open_on_demand
from meshd.tunnel.pump import Counter, Unwatched, pump
from meshd.tunnel.stock_head import Saver

SECRET_SECONDS = 5.0  # a client that is ours sends its secret at once
MAX_CLIENTS = 64
LOG = log.get("tunnel")


class Forward:
    """Listens; each connection becomes a stream of `service` to `peer`.

    With `secret`, a client must send exactly these bytes first (they are not passed on); `owner_check` is
    asked about the client's address where the operating system can tell who owns a connection. At a unix
    socket it must be a process of this user, or root's. A client that fails any of these is hung up on.
    """

    def __init__(
        self,
        *,
        mesh: Mesh,
        peer: PeerId,
        service: str,
        metadata: Mapping[str, MetadataValue],
        secret: bytes = b"",
        owner_check: OwnerCheck | None = None,
        watch: Watching | None = None,
        on_broken: Callable[[MeshdError], None] = lambda _error: None,
        listen: Target = ("127.0.0.1", 0),
        bulk: bool = False,
        saved: SavedWeights | None = None,
        compresses: Callable[[], bool] = lambda: False,
        greeting: bytes = b"",
    ) -> None:
        """`listen`: host and port, 0 for any free one; or a folder that this user alone may enter, for a unix
        socket in it. Raises UserError when it cannot be had.

        `saved`: the client is a stock llama-server, and the inspector changes nothing. `compresses` is asked
        before each stream; the peer must be known to take compressed ones. `greeting` is said to each client
        in the peer's place once its stream is open; the inspector keeps back what the peer says of the same.
        """
        self._mesh = mesh
        self._peer = peer
        self._service = service
        self._metadata = metadata
        self._secret = secret
        self._owner_check = owner_check
        self._watch: Watching = watch or _nobody
        self._on_broken = on_broken
        self._counter = Counter()
        self._streams = 0
        self._fresh: set[socket.socket] = set()  # taken, and not yet the matter of a task that runs
        self._bulk = bulk
        self._saver = Saver(saved) if saved is not None else None
        self._compresses = compresses
        self._greeting = greeting
        self._open(listen)

    def _open(self, listen: Target) -> None:
        self.host, self.port = "", 0
        self.path: Path | None = None
        if isinstance(listen, Path):
            self._listener, self.path = listen_in(listen)
        else:
            self._listener = _listen(*listen)
            self.host, self.port = listen[0], int(self._listener.getsockname()[1])
        self._listener.setblocking(False)

    @property
    def endpoint(self) -> str:
        """For llama-server's --rpc: `host:port`, or `unix:` and a name in the folder of sockets."""
        if self.path is not None:
            return f"unix:{self.path.name}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def status(self) -> TunnelStatus:
        """Totals so far."""
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
        if self.path is not None and self._listener.fileno() >= 0:  # later its name may be another's
            self.path.unlink(missing_ok=True)
        self._listener.close()

    async def serve(self) -> None:
        """Take connections until cancelled; ends every one of them then."""
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
            if self.path is not None and not self._is_this_users(client):
                client.close()
                return
            local = await adopt(client)
            try:
                await self._tunnel(local)
            finally:
                local.abort()
        except Broken as error:
            LOG.debug("stream_ended", peer=self._peer.short, service=self._service, why=error.what)
        finally:
            self._streams -= 1

    async def _tunnel(self, local: LocalSocket) -> None:
        if self.path is None and not local.peername[1]:
            return  # it has gone already: nobody can tell whose it was, nor needs to
        if self._owner_check is not None and not await self._owner_check(local.peername, local.sockname):
            LOG.warning("tunnel_foreign_client", service=self._service, remote=local.remote)
            return
        try:
            first = await self._take_secret(local)
        except (Broken, EndOfStream, TimeoutError):
            return
        if first is None:
            LOG.warning("tunnel_wrong_secret", service=self._service, remote=local.remote)
            return
        compressed = self._compresses()
        metadata = {**self._metadata, **(COMPRESSED if compressed else {})}
        try:
            stream = await open_on_demand(
                self._mesh, self._peer, self._service, metadata=metadata, bulk=self._bulk
            )
        except MeshdError as error:
            self._on_broken(error)
            return
        if compressed:
            stream = CompressedStream(stream)
        local.try_write(self._greeting)
        local.unread(first)  # an inspector sees this, too
        with self._watch() as watched:
            await self._carry(local, stream, watched)
        await local.wait_closed()

    async def _carry(self, local: LocalSocket, stream: Stream, watched: Watched) -> None:
        if self._saver is not None:
            await self._saver.carry(self.endpoint, local, stream, self._counter, watched, self._on_broken)
            return
        await pump(
            local,
            stream,
            counter=self._counter,
            inspector=watched,
            flow=watched,
            on_broken=self._on_broken,
        )

    def _is_this_users(self, client: socket.socket) -> bool:
        try:
            user, _pid = peer_of(client)
        except OSError:
            return False  # it has gone already
        if allowed(user):
            return True
        LOG.warning("tunnel_foreign_client", service=self._service, remote=f"user {user}")
        return False

    async def _take_secret(self, local: LocalSocket) -> bytes | None:
        """What followed the secret, or None if it was wrong."""
        if not self._secret:
            return b""
        received = b""
        async with asyncio.timeout(SECRET_SECONDS):
            while len(received) < len(self._secret):
                received += await local.read()
        size = len(self._secret)
        return received[size:] if hmac.compare_digest(received[:size], self._secret) else None


def _nobody() -> AbstractContextManager[Watched]:
    return nullcontext(Unwatched())


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
