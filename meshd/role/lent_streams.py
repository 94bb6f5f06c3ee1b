"""Streams to the rpc-servers that a worker lends: of their heads, and of other workers of the same heads."""

from collections import deque
from collections.abc import Mapping
from functools import partial

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, RemoteProtocolError
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.peer.interface import MetadataValue, Stream
from meshd.role.interface import Kit
from meshd.role.neighbours import ASK
from meshd.role.rpc_server import RpcServer
from meshd.rpc.pushed import PushFilter
from meshd.wire.lease import PUSH_SERVICE, RPC_SERVICE

SHOWN_REFUSED = 3  # requests that broke the rules, in status; the log has all
NO_USE = "this member may not use workers (role `use` is missing)"
LOG = log.get("worker")


class LentStreams:
    """Serves both services; `servers` are those that run now, by lease."""

    def __init__(self, kit: Kit, servers: Mapping[bytes, RpcServer]) -> None:
        self._kit = kit
        self._servers = servers
        self._refused: deque[str] = deque(maxlen=SHOWN_REFUSED)
        kit.mesh.handle(RPC_SERVICE, self._serve_rpc, allow=self._may_rpc)
        kit.mesh.handle(PUSH_SERVICE, self._serve_push, allow=self._may_push, quiet=True)

    @property
    def refused(self) -> tuple[str, ...]:
        """The last requests that broke the rules, a line each."""
        return tuple(self._refused)

    def _may_rpc(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | None:
        if Role.USE not in member.roles:
            return NO_USE
        return None if self._find(member.peer, metadata) is not None else "no live lease with this id"

    def _may_push(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | None:
        if self._find_admitting(member.peer, metadata) is not None:
            return None
        if ASK not in metadata:  # who asks may only be early: its head tells both of us at once
            LOG.warning("push_refused", peer=member.peer.short)
        return "no live lease with this id that admits this member"

    def _find(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> RpcServer | None:
        """Of the lease that `peer` has and names."""
        server = self._named(metadata)
        return server if server is not None and server.lease.peer == peer else None

    def _find_admitting(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> RpcServer | None:
        """Of the lease that `peer` names, if its head has introduced `peer`."""
        server = self._named(metadata)
        return server if server is not None and server.admits(peer) else None

    def _named(self, metadata: Mapping[str, MetadataValue]) -> RpcServer | None:
        lease_id = metadata.get("lease")
        return self._servers.get(lease_id) if isinstance(lease_id, bytes) else None

    async def _serve_rpc(self, stream: Stream) -> None:
        server = self._find(stream.peer, stream.metadata)
        if server is None:
            raise Broken("the lease has ended")
        target, secret = server.address
        await self._kit.connect_through(
            stream,
            target,
            secret=secret,
            inspector=server.make_firewall(),
            weights=server.open_weights,
            on_broken=partial(self._refuse, stream.peer),
        )

    async def _serve_push(self, stream: Stream) -> None:
        server = self._find_admitting(stream.peer, stream.metadata)
        if server is None or server.neighbours is None:
            raise Broken("the lease has ended")
        if ASK in stream.metadata:
            await server.neighbours.answer(stream)
            return
        await self._kit.connect_through(
            stream,
            server.address[0],
            secret=server.peers_secret,
            inspector=PushFilter(),
            weights=None,
            on_broken=partial(self._refuse, stream.peer),
        )

    def _refuse(self, peer: PeerId, error: MeshdError) -> None:
        if isinstance(error, RemoteProtocolError):
            LOG.warning("rpc_refused", peer=peer.short, why=error.what)
            self._refused.append(f"a request of `{peer.short}` was refused: {error.what}")
