"""Tunnels that users ask for: services that this node exposes, and peers' services that it has opened.

Default deny: a service is reached by the nodes that were named for it, and by nobody while none was. A node
that was not named hears the same as one that asks for a service that does not exist. A peer's service that
was opened is a listener here (`Forward`).

Names of users' services live in a space of their own: on the wire they are metadata of the one service
`tunnel`, so that none can take the place of a service of meshd (`rpc`, `lease`, `news`). What users have
exposed and opened is stored (`Kept`), to outlive a restart.
"""

import asyncio
import errno
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated

from meshd.base import log
from meshd.base.admission import Release, Slots
from meshd.base.errors import Broken, MeshdError, Refused, RemoteProtocolError, UserError
from meshd.base.fault_boundary import NO_ROOM, Fault, contained
from meshd.base.hosts import is_loopback
from meshd.base.peer_limits import TUNNELLED, TUNNELLED_OF_PEER
from meshd.base.socket_owners import port_holder
from meshd.base.sockets import NO_ROOM_SECONDS, adopt, listen_at
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.tunnel.interface import ExposedStatus, OwnerCheck, TunnelStatus
from meshd.tunnel.joined import open_on_demand
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, pump
from meshd.wire.codec import Message, decode_as
from meshd.wire.limits import NEEDED, As, Between, Items, NodeId, Text
from meshd.wire.stun import Endpoint

MAX_CLIENTS = 64
_CONNECT_SECONDS = 5.0
MAX_EXPOSED = 64
MAX_OPENED = 64
MAX_ALLOWED_PEERS = 64  # named for one service
MAX_HOST = 253  # a DNS name (RFC 1035)
MAX_TUNNELS_BYTES = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ACTION_NAMES = frozenset({"ls", "rm"})  # of `meshd expose`, which would read such a name as one of these
TUNNEL_SERVICE = "tunnel"
_ASK_SECONDS = 5.0
_AGAIN_SECONDS = 10.0  # a listener whose port is taken at the start is tried again after that
LOG = log.get("tunnel")


class Forward:
    """Listens; each connection becomes a stream to a service that `peer` has exposed.

    `owner_check` is asked about the client's address where the operating system can tell who owns a
    connection. A client that fails it is hung up on.
    """

    def __init__(
        self,
        *,
        mesh: Mesh,
        peer: PeerId,
        service: str,
        listen: tuple[str, int],
        owner_check: OwnerCheck | None,
        on_broken: Callable[[MeshdError], None],
    ) -> None:
        """Listen at host and port (0: any free one). Raises UserError when it cannot be had."""
        self._mesh = mesh
        self._peer = peer
        self._service = service
        self._owner_check = owner_check
        self._on_broken = on_broken
        self.counter = Counter()
        self.streams = 0
        self._fresh: set[socket.socket] = set()  # taken, and not yet the matter of a task that runs
        self._listener = _listen(*listen)
        self.port = int(self._listener.getsockname()[1])
        self._listener.setblocking(False)

    def close(self) -> None:
        """Stop listening (also when `serve` was never run)."""
        self._listener.close()

    async def serve(self) -> None:
        """Accept connections until cancelled; then end every one of them."""
        try:
            async with Owner() as owner:
                while True:
                    client = await self._accept()
                    if self.streams >= MAX_CLIENTS:
                        LOG.warning("tunnel_full", service=self._service, count=self.streams)
                        client.close()
                        continue
                    self.streams += 1
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
            self.streams -= 1

    async def _tunnel(self, local: LocalSocket) -> None:
        if not local.peername[1]:
            return  # it has gone already: nobody can tell whose it was, nor needs to
        if self._owner_check is not None and not await self._owner_check(local.peername, local.sockname):
            LOG.warning("tunnel_foreign_client", service=self._service, remote=local.remote)
            return
        try:
            stream = await open_on_demand(
                self._mesh, self._peer, TUNNEL_SERVICE, metadata={"name": self._service}, bulk=True
            )
        except MeshdError as error:
            self._on_broken(error)
            return
        await pump(local, stream, counter=self.counter, on_broken=self._on_broken)
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


_ServiceName = Annotated[str, Text(64, pattern=_NAME)]
_Host = Annotated[str, Text(MAX_HOST)]
_Peer = Annotated[PeerId, As(NodeId, attrgetter("raw"), PeerId)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """A local TCP service, and the nodes that may reach it: nobody else, and nobody when there are none."""

    name: _ServiceName
    host: _Host
    port: Annotated[int, Between(1, 65535)]
    peers: Annotated[tuple[_Peer, ...], Items(MAX_ALLOWED_PEERS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A peer's service as a listener here. `port` 0: any free one, which is then kept."""

    peer: _Peer
    service: _ServiceName
    host: _Host
    port: Annotated[int, Between(0, 65535)]


@dataclass(frozen=True, slots=True)
class Kept(Message):
    """All exposed services and open tunnels, in the order in which they were made."""

    exposed: Annotated[tuple[Exposed, ...], Items(MAX_EXPOSED), NEEDED] = ()
    opened: Annotated[tuple[Opened, ...], Items(MAX_OPENED), NEEDED] = ()

    @classmethod
    def decode(cls, data: bytes) -> "Kept":
        """Read the output of `encode`. Raises RemoteProtocolError."""
        return decode_as(cls, data, limit=MAX_TUNNELS_BYTES)


def is_name(text: object) -> bool:
    """Return True if a service may have this name."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def check_name(text: str) -> str:
    """Return `text`. Raises UserError when no service can have this name."""
    if not is_name(text):
        raise UserError(
            f"`{text[:80]}` cannot be the name of a service",
            hint="use 1 to 63 letters, digits, dots, hyphens or underscores",
        )
    return text


def unique(peers: Iterable[PeerId]) -> tuple[PeerId, ...]:
    """Return each once, in order. Raises UserError when there are too many."""
    named = tuple(dict.fromkeys(peers))
    if len(named) > MAX_ALLOWED_PEERS:
        raise UserError(f"a service can be exposed to {MAX_ALLOWED_PEERS} nodes, not to {len(named)}")
    return named


@dataclass(slots=True)
class _ExposedService:
    exposed: Exposed
    places: Slots = field(default_factory=lambda: Slots(TUNNELLED, TUNNELLED_OF_PEER))
    counter: Counter = field(default_factory=Counter)
    streams: set[Stream] = field(default_factory=set)


@dataclass(slots=True)
class _OpenTunnel:
    opened: Opened
    forward: Forward | None = None
    task: asyncio.Task[None] | None = None
    last_error: str = ""


class OwnTunnels:
    """The tunnels of one node. `save` stores what `load` gets at the next start; works only while `serve`
    runs.
    """

    def __init__(
        self, *, mesh: Mesh, save: Callable[[bytes], object], owned_by_user: OwnerCheck | None = None
    ) -> None:
        """Set up without services. `owned_by_user` says whether a client on loopback is a program of this OS
        user.
        """
        self._mesh = mesh
        self._save = save
        self._owned_by_user = owned_by_user
        self._services: dict[str, _ExposedService] = {}
        self._tunnels: list[_OpenTunnel] = []
        self._owner: Owner | None = None
        mesh.handle(TUNNEL_SERVICE, self._serve_stream, allow=self._admit)

    def load(self, blob: bytes | None, *, file: str) -> None:
        """Load what `save` was given at an earlier start. Raises UserError."""
        if blob is None:
            return
        try:
            kept = Kept.decode(blob)
        except RemoteProtocolError as error:
            raise UserError(
                f"the tunnel file `{file}` cannot be read: {error.what}",
                hint="move it away, then repeat `meshd expose` and `meshd tunnel open` as needed",
            ) from error
        self._services = {stored.name: _ExposedService(stored) for stored in kept.exposed}
        self._tunnels = [_OpenTunnel(stored) for stored in kept.opened]

    async def serve(self) -> None:
        """Listen, and carry what comes, until cancelled."""
        async with Owner() as owner:
            self._owner = owner
            try:
                for tunnel in self._tunnels:
                    self._start(tunnel)
                await asyncio.Event().wait()
            finally:
                self._owner = None
                for tunnel in self._tunnels:
                    if tunnel.forward is not None:
                        tunnel.forward.close()  # of a task that is cancelled before its first step

    # Services of this node.

    def exposed(self) -> list[ExposedStatus]:
        """Return the services in the order in which they were exposed."""
        return [
            ExposedStatus(
                name=service.exposed.name,
                host=service.exposed.host,
                port=service.exposed.port,
                peers=service.exposed.peers,
                streams=len(service.streams),
                sent_bytes=service.counter.sent,
                received_bytes=service.counter.received,
            )
            for service in self._services.values()
        ]

    def expose(self, name: str, *, host: str, port: int, peers: Iterable[PeerId] | None) -> ExposedStatus:
        """Let exactly these nodes reach host:port as `name`; replaces the service of that name.

        None: those that could reach it before. Connections of nodes that are named again, to the same place,
        go on. Raises UserError.
        """
        if check_name(name) in _ACTION_NAMES:
            raise UserError(
                f"`{name}` cannot be the name of a service: `meshd expose {name}` is an action",
                hint="choose another name",
            )
        service = self._services.get(name)
        if peers is None:
            peers = service.exposed.peers if service is not None else ()
        wanted = Exposed(name=name, host=host, port=port, peers=unique(peers))
        if service is None:
            if len(self._services) >= MAX_EXPOSED:
                raise UserError(
                    f"{MAX_EXPOSED} services are already exposed",
                    hint="run `meshd expose rm NAME` to remove one",
                )
            service = self._services[name] = _ExposedService(wanted)
        moved = (service.exposed.host, service.exposed.port) != (host, port)
        service.exposed = wanted
        for stream in [
            open_stream for open_stream in service.streams if moved or open_stream.peer not in wanted.peers
        ]:
            stream.reset(Code.REFUSED, "the service is not exposed to this node any more")
        self._keep()
        return next(status for status in self.exposed() if status.name == name)

    def unexpose(self, name: str) -> None:
        """End a service and the connections to it. Raises UserError."""
        service = self._services.pop(name, None)
        if service is None:
            raise UserError(
                f"no service `{name[:80]}` is exposed", hint="run `meshd expose ls` to list the services"
            )
        for stream in list(service.streams):
            stream.reset(Code.REFUSED, "the service is not exposed any more")
        self._keep()

    def _admit(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | Release:
        service = self._find(member.peer, metadata)
        if service is None:
            name = str(metadata.get("name", ""))[:64]
            return f"no service `{name}` is exposed to this node"
        release = service.places.take(member.peer)
        return release or f"`{service.exposed.name}` has its maximum number of connections"

    def _find(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> _ExposedService | None:
        service = self._services.get(str(metadata.get("name", "")))
        return service if service is not None and peer in service.exposed.peers else None

    async def _serve_stream(self, stream: Stream) -> None:
        service = self._find(stream.peer, stream.metadata)
        if service is None:
            raise Broken("the service is not exposed any more")
        if stream.metadata.get("ask"):
            stream.write_eof()  # an opener of a tunnel asks whether it may
            return
        service.streams.add(stream)
        try:
            place = service.exposed
            await connect_through(stream, (place.host, place.port), counter=service.counter)
        finally:
            service.streams.discard(stream)

    # Services of peers.

    def opened(self) -> list[TunnelStatus]:
        """Return the tunnels in the order in which they were opened."""
        return [_status(tunnel) for tunnel in self._tunnels]

    async def open(self, peer: PeerId, service: str, *, host: str, port: int) -> TunnelStatus:
        """Listen at host:port for the peer's `service`; with port 0 at any, which is kept.

        A peer that is connected is asked first: raises Refused with its reason. Raises UserError when the
        port is taken.
        """
        check_name(service)
        same = [
            opened
            for opened in self._tunnels
            if (opened.opened.peer, opened.opened.service) == (peer, service)
        ]
        for tunnel in same:
            if tunnel.opened.host == host and port in (0, tunnel.opened.port):
                return _status(tunnel)
        if len(self._tunnels) >= MAX_OPENED:
            raise UserError(
                f"{MAX_OPENED} tunnels are already open", hint="run `meshd tunnel close` to close one"
            )
        await self._ask(peer, service)
        tunnel = _OpenTunnel(Opened(peer=peer, service=service, host=host, port=port))
        self._listen(tunnel)
        self._tunnels.append(tunnel)
        self._start(tunnel)
        self._keep()
        return _status(tunnel)

    async def close(self, tunnels: Iterable[TunnelStatus]) -> None:
        """End these tunnels and their connections."""
        listens = {status.listen for status in tunnels}
        for tunnel in [opened for opened in self._tunnels if _status(opened).listen in listens]:
            self._tunnels.remove(tunnel)
            if tunnel.task is not None:
                await cancel_and_wait(tunnel.task)
            if tunnel.forward is not None:
                tunnel.forward.close()
        self._keep()

    async def _ask(self, peer: PeerId, service: str) -> None:
        """Ask for permission. Raises Refused when the peer says that we may not."""
        try:
            question: Mapping[str, MetadataValue] = {"name": service, "ask": 1}
            stream = await open_on_demand(self._mesh, peer, TUNNEL_SERVICE, metadata=question)
        except MeshdError:
            return  # not connected now: its user will see
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                await stream.accepted()
        except Refused as error:
            hint = f"run `meshd expose {service} HOST:PORT --to` with this node's name on that node"
            raise Refused(error.what, code=error.code, hint=hint) from None
        except (Broken, TimeoutError):
            return
        finally:
            stream.reset(Code.CANCELLED, "that was the answer")

    def _start(self, tunnel: _OpenTunnel) -> None:
        if self._owner is not None:
            tunnel.task = self._owner.start_for(
                f"peer {tunnel.opened.peer.short}",
                self._run(tunnel),
                name=f"tunnel to {tunnel.opened.service}",
            )

    async def _run(self, tunnel: _OpenTunnel) -> None:
        while True:
            await self._listen_patiently(tunnel)
            assert tunnel.forward is not None
            try:
                source, name = f"peer {tunnel.opened.peer.short}", f"tunnel to {tunnel.opened.service}"
                await contained(tunnel.forward.serve(), source=source, name=name)
            except Fault as error:
                tunnel.forward, tunnel.last_error = None, error.what
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _listen_patiently(self, tunnel: _OpenTunnel) -> None:
        while tunnel.forward is None:
            try:
                self._listen(tunnel)
            except UserError as error:
                tunnel.last_error = error.what
                LOG.warning("tunnel_waits", service=tunnel.opened.service, why=error.what)
                await asyncio.sleep(_AGAIN_SECONDS)
        tunnel.last_error = ""

    def _listen(self, tunnel: _OpenTunnel) -> None:
        opened = tunnel.opened

        def broken(error: MeshdError) -> None:
            tunnel.last_error = error.what

        tunnel.forward = Forward(
            mesh=self._mesh,
            peer=opened.peer,
            service=opened.service,
            owner_check=self._owned_by_user if is_loopback(opened.host) else None,
            on_broken=broken,
            listen=(opened.host, opened.port),
        )
        if opened.port != tunnel.forward.port:
            tunnel.opened = replace(opened, port=tunnel.forward.port)

    def _keep(self) -> None:
        exposed = tuple(service.exposed for service in self._services.values())
        self._save(Kept(exposed, tuple(tunnel.opened for tunnel in self._tunnels)).encode())


def _status(tunnel: _OpenTunnel) -> TunnelStatus:
    opened, forward = tunnel.opened, tunnel.forward
    return TunnelStatus(
        peer=opened.peer,
        service=opened.service,
        listen=str(Endpoint(opened.host, opened.port)),
        streams=forward.streams if forward is not None else 0,
        sent_bytes=forward.counter.sent if forward is not None else 0,
        received_bytes=forward.counter.received if forward is not None else 0,
        user=True,
        last_error=tunnel.last_error,
    )
