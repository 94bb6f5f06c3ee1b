"""Streams to the servers that a worker lends, from their heads and from other workers of the same heads."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from socket import socket

from meshd.base import local_way, log
from meshd.base.admission import Release, Slots
from meshd.base.errors import Broken, MeshdError, Refused, RemoteProtocolError
from meshd.base.local_way import LOCAL
from meshd.base.peer_limits import EARLY_STREAMS, LENT, PUSHED, PUSHED_OF_PEER
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member, Role
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.wire.lease import PUSH_SERVICE, RPC_SERVICE
from meshd.worker.mesh_server import MeshServer
from meshd.worker.push_neighbours import ASK

SHOWN_REFUSED = 3  # violations shown in status; the log has all of them
NO_USE = "this member cannot use workers (it lacks the role `use`)"
TOO_MANY = "this lease has its maximum number of streams"
OVER = "the lease has ended"
CLOSING_SECONDS = 1.0  # after the end of a lease, for the other side to close its halves of the streams
LOG = log.get("worker")


class Lending:
    """A lease from its offer to its end, as its streams see it."""

    def __init__(self, peer: PeerId) -> None:
        self.peer = peer
        self.server: MeshServer | None = None  # once the head has reserved
        self.lent = Slots(LENT)  # streams of its head
        self.pushed = Slots(PUSHED, PUSHED_OF_PEER)  # streams of other workers
        self._direct: socket | None = None  # to a head on this machine, until its stream is served
        self._has_come = False
        self._is_up = False
        self._settled = asyncio.Event()
        self._ends_at: float | None = None  # deadline of the streams that are still served
        self._served: set[asyncio.Timeout] = set()

    def up(self) -> None:
        """Note that the server accepts connections."""
        self._is_up = True
        self._settled.set()

    def over(self) -> None:
        """Note that the lease has ended, or that there will be none. Idempotent."""
        self._is_up = False
        self._settled.set()
        if (direct := self.take_direct()) is not None:
            direct.close()
        if self._ends_at is None:
            self._ends_at = asyncio.get_running_loop().time() + CLOSING_SECONDS
            for limit in self._served:
                limit.reschedule(self._ends_at)

    async def serve(self, work: Awaitable[None]) -> None:
        """Serve a stream until both sides have closed it, at most CLOSING_SECONDS after the lease ends.

        Without that limit, a head or another worker could keep the stream by never closing its half. Raises
        Broken.
        """
        try:
            async with asyncio.timeout_at(self._ends_at) as limit:
                self._served.add(limit)
                try:
                    await work
                finally:
                    self._served.discard(limit)
        except TimeoutError:
            if not limit.expired():
                raise
            raise Broken(OVER) from None

    def come(self, offered: MetadataValue | None) -> None:
        """Connect to what a head on this machine offers. Its stream is accepted only after this.

        The first stream counts, as only one is served.
        """
        if not self._has_come:
            self._has_come = True
            self._direct = local_way.come(offered) if isinstance(offered, bytes) else None

    def take_direct(self) -> socket | None:
        """Return the direct connection to the head, if there is one; the caller owns it from here on."""
        direct, self._direct = self._direct, None
        return direct

    @property
    def must_wait(self) -> bool:
        """True until the server is up or the lease has ended."""
        return not self._settled.is_set()

    async def until_up(self) -> MeshServer:
        """Wait for the server of the lease and return it.

        Raises Broken if there is none, or none any more.
        """
        await self._settled.wait()
        if self.server is None or not self._is_up:
            raise Broken(OVER)
        return self.server


class LentStreams:
    """Serve the streams of the services `rpc` and `push`."""

    def __init__(self, mesh: Mesh, *, local: bool = True) -> None:
        """Serve from now on. `local`: connect to heads on this machine directly."""
        self._local = local
        self._lendings: dict[bytes, Lending] = {}
        self._waiting: Counter[PeerId] = Counter()
        self._refused: deque[tuple[str, str]] = deque(maxlen=SHOWN_REFUSED)
        mesh.handle(RPC_SERVICE, self._serve_rpc, allow=self._may_rpc)
        mesh.handle(PUSH_SERVICE, self._serve_push, allow=self._may_push, quiet=True)

    @property
    def refused(self) -> tuple[tuple[str, str], ...]:
        """The last violations of the rules: what happened, and what to do about it."""
        return tuple(self._refused)

    @contextmanager
    def lend(self, lease_id: bytes, peer: PeerId) -> Iterator[Lending]:
        """Let streams of `peer` name this lease until the block is left."""
        lending = self._lendings[lease_id] = Lending(peer)
        try:
            yield lending
        finally:
            lending.over()
            del self._lendings[lease_id]

    def _may_rpc(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | Release:
        if Role.USE not in member.roles:
            return NO_USE
        lending = self._find(member.peer, metadata)
        if lending is None:
            return "no live lease with this id"
        place = lending.lent.take(member.peer)
        if place is not None and self._local:
            lending.come(metadata.get(LOCAL))
        return place or TOO_MANY

    def _may_push(self, member: Member, metadata: Mapping[str, MetadataValue]) -> str | Release:
        lending = self._find_admitting(member.peer, metadata)
        if lending is not None and lending.server is not None:
            place = lending.pushed.take(member.peer)
            if place is not None and ASK in metadata:
                lending.server.neighbours.asked_by(member.peer, metadata)
            return place or TOO_MANY
        # A worker that asks may only be early: the head tells both of us at the same time.
        if ASK not in metadata:
            LOG.warning("push_refused", peer=member.peer.short)
        return "no live lease with this id that admits this member"

    def _find(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> Lending | None:
        """Return the lease that `peer` has, or is about to have, and names in `metadata`."""
        lending = self._named(metadata)
        return lending if lending is not None and lending.peer == peer else None

    def _find_admitting(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> Lending | None:
        """Return the lease that `peer` names in `metadata`, if its head has introduced `peer`."""
        lending = self._named(metadata)
        admits = lending is not None and lending.server is not None and lending.server.neighbours.admits(peer)
        return lending if admits else None

    def _named(self, metadata: Mapping[str, MetadataValue]) -> Lending | None:
        lease_id = metadata.get("lease")
        return self._lendings.get(lease_id) if isinstance(lease_id, bytes) else None

    async def _up(self, lending: Lending, peer: PeerId) -> MeshServer:
        """Wait for the server of the lease. Few streams of one member may wait. Raises Refused, Broken."""
        if not lending.must_wait:
            return await lending.until_up()
        if self._waiting[peer] >= EARLY_STREAMS.most:
            raise Refused("too many streams are waiting for a server", code="busy")
        self._waiting[peer] += 1
        try:
            return await lending.until_up()
        finally:
            self._waiting[peer] -= 1
            self._waiting += Counter()  # drops those at zero

    async def _serve_rpc(self, stream: Stream) -> None:
        lending = self._find(stream.peer, stream.metadata)
        if lending is None:
            raise Broken(OVER)
        server = await self._up(lending, stream.peer)
        on_broken = partial(self._refuse, stream.peer)
        await lending.serve(server.serve_head(stream, lending.take_direct(), on_broken))

    async def _serve_push(self, stream: Stream) -> None:
        lending = self._find_admitting(stream.peer, stream.metadata)
        if lending is None or lending.server is None:
            raise Broken(OVER)
        if ASK in stream.metadata:
            await lending.serve(lending.server.neighbours.answer(stream))
            return
        server = await self._up(lending, stream.peer)
        await lending.serve(server.neighbours.serve(stream, partial(self._refuse, stream.peer)))

    def _refuse(self, peer: PeerId, error: MeshdError) -> None:
        if isinstance(error, RemoteProtocolError):
            LOG.warning("rpc_refused", peer=peer.short, why=error.what, hint=error.hint)
            self._refused.append((f"a connection of `{peer.short}` was ended: {error.what}", error.hint))
