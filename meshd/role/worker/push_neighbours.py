"""The neighbours of one lease: who may push to its server, and to whom it may push.

Introduced by the head of the lease, which has leased both. A neighbour is a member of the mesh and the lease
that it has granted: no address comes from anybody. Whether it takes streams of ours is asked first, by a
stream that stays open: a session that is made for this is kept for as long as both leases live.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

from meshd.base import log
from meshd.base.backoff import Backoff
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.peer_limits import NEIGHBOURS
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, MetadataValue, PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.role.interface import Orders, Tunnel, TunnelClient, TunnelRequest, Tunnels
from meshd.role.native import command_lines
from meshd.rpc.hang_detector import Watch
from meshd.rpc.protocol import PEER_SERVED, SECRET_BYTES
from meshd.rpc.push_firewall import Vouched
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import PUSH_SERVICE, Admit, Neighbour, Reached

MAX_NEIGHBOURS = NEIGHBOURS.most
REACH_SECONDS = 8.0  # until a session with it is there; the head's RPC waits 10 s for the answer
GONE_SECONDS = 20.0  # without a session for so long, though both wanted one: it is not waited for as long
GONE_REACH_SECONDS = 1.0
_RETRY = Backoff(first=0.1, factor=1.5, most=1.0)
ASK = "ask"  # in the metadata of a stream: whether others would be taken
LOG = log.get("worker")


class PushNeighbours(ABC):
    """`keep` runs in tasks of the lease. `messages` lead to its head."""

    def __init__(self, mesh: Mesh, tunnels: Tunnels, messages: MessageStream) -> None:
        self._mesh = mesh
        self._tunnels = tunnels
        self._messages = messages
        self._known: set[int] = set()
        self._open: list[Tunnel] = []
        self._admitted: set[PeerId] = set()
        self._over = asyncio.Event()

    # What differs from protocol to protocol.

    @abstractmethod
    def open(self, peer: PeerId, neighbour: Neighbour) -> AbstractContextManager[Tunnel]:
        """A tunnel to it, until the block is left. Raises MeshdError."""

    @abstractmethod
    def reached(self, number: int, tunnel: Tunnel) -> None:
        """The server may push through this tunnel, which is served."""

    @abstractmethod
    def unreachable(self, number: int) -> None:
        """There is no way to it, or none any more."""

    @abstractmethod
    def all_named(self) -> None:
        """The head names no more of them: `settle` is to be run. Raises RemoteProtocolError."""

    @abstractmethod
    async def settle(self) -> None:
        """Until it is known of each whether there is a way to it."""

    # What all have.

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """To neighbours, open now."""
        return [tunnel.status for tunnel in self._open]

    def admit(self, admitted: Admit) -> None:
        """It may push to this lease's server from now on. Raises RemoteProtocolError."""
        self._admitted.add(PeerId(admitted.peer))
        if len(self._admitted) > MAX_NEIGHBOURS:
            raise RemoteProtocolError(f"lease: more than {MAX_NEIGHBOURS} neighbours", code="lease")

    def admits(self, peer: PeerId) -> bool:
        """Whether the head said so."""
        return peer in self._admitted

    def take(self, neighbour: Neighbour) -> None:
        """It is to be kept. Raises RemoteProtocolError."""
        if neighbour.number in self._known or len(self._known) >= MAX_NEIGHBOURS:
            raise RemoteProtocolError(
                "lease: a neighbour was named twice, or there are too many", code="lease"
            )
        self._known.add(neighbour.number)

    async def keep(self, neighbour: Neighbour) -> None:
        """Open a tunnel to it, tell the rpc-server and the head, and keep it until it or the lease ends."""
        peer, number = PeerId(neighbour.peer), neighbour.number
        try:
            asked = await self._ask(peer, neighbour.lease_id)
        except MeshdError as error:
            await self._none(peer, number, error.what)
        else:
            try:
                await self._lead(peer, neighbour, asked)
            finally:
                asked.write_eof()

    async def _ask(self, peer: PeerId, lease_id: bytes) -> Stream:
        """Waits for a session, and for the head's word to arrive there. Raises MeshdError."""
        metadata: Mapping[str, MetadataValue] = {"lease": lease_id, ASK: 1}
        tries, why = 0, "no answer"
        seconds = self._patience(peer)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    try:
                        stream = self._mesh.open_stream(peer, PUSH_SERVICE, metadata=metadata)
                        return await _accepted(stream)
                    except (Broken, Refused) as error:
                        why = error.what
                    await asyncio.sleep(_RETRY.delay(tries, 0.0))
                    tries += 1
        except TimeoutError:
            raise Broken(f"unreachable for {seconds:.0f} s: {why}") from None

    def _patience(self, peer: PeerId) -> float:
        """How long to wait for it, in seconds: the load of a model waits as long."""
        now = asyncio.get_running_loop().time()
        for status in self._mesh.peers():
            if status.peer == peer:
                gone = status.state is not PeerState.CONNECTED and not status.present
                return GONE_REACH_SECONDS if gone and now - status.since > GONE_SECONDS else REACH_SECONDS
        return REACH_SECONDS  # news of it may be on their way

    async def _none(self, peer: PeerId, number: int, why: str) -> None:
        LOG.info("push_no_way", peer=peer.short, why=why)
        self.unreachable(number)
        await self._messages.send(Reached(number, why).encode())

    async def _lead(self, peer: PeerId, neighbour: Neighbour, asked: Stream) -> None:
        number = neighbour.number
        with ExitStack() as stack:
            try:
                tunnel = stack.enter_context(self.open(peer, neighbour))
            except MeshdError as error:
                await self._none(peer, number, error.what)
                return
            self._open.append(tunnel)
            try:
                async with Owner() as owner:
                    owner.start(tunnel.serve(), name=f"push {peer.short}")
                    self.reached(number, tunnel)
                    await self._messages.send(Reached(number, "").encode())
                    LOG.info("push_way", peer=peer.short)
                    await _until_ended(asked)
                    owner.cancel()
            finally:
                tunnel.close()
                self._open.remove(tunnel)
                self.unreachable(number)

    # The other direction.

    async def answer(self, asked: Stream) -> None:
        """To a neighbour that asks whether its streams are taken: yes, until its stream or the lease ends.

        Then until both halves are closed; rpc_streams.py does not wait for ever.
        """
        async with Owner() as owner:
            ended = owner.start(_until_ended(asked), name="neighbour asks")
            over = owner.start(self._over.wait(), name="lease over")
            await asyncio.wait([ended, over], return_when=asyncio.FIRST_COMPLETED)
            asked.write_eof()
            await asyncio.wait([ended])
            owner.cancel()

    def close(self) -> None:
        """The lease is over."""
        self._admitted.clear()
        self._over.set()


class RpcNeighbours(PushNeighbours):
    """Of a patched rpc-server: told where it reaches them by `orders`, and seen by `watch`."""

    def __init__(
        self, mesh: Mesh, tunnels: Tunnels, messages: MessageStream, orders: Orders, watch: Watch
    ) -> None:
        super().__init__(mesh, tunnels, messages)
        self._orders = orders
        self._watch = watch
        self._secrets: dict[int, bytes] = {}

    @contextmanager
    def open(self, peer: PeerId, neighbour: Neighbour) -> Iterator[Tunnel]:
        """See PushNeighbours."""
        secret = self._secrets[neighbour.number] = self._tunnels.random(SECRET_BYTES)
        outward = self._watch.neighbour()
        try:
            yield self._tunnels.open(
                TunnelRequest(
                    peer=peer,
                    service=PUSH_SERVICE,
                    metadata={"lease": neighbour.lease_id},
                    client=TunnelClient(secret),
                    on_broken=partial(push_broken, peer),
                    compressed=neighbour.compressed,
                    always=neighbour.always,
                    watch=lambda: nullcontext(Vouched(outward)),  # there is one connection
                    greeting=PEER_SERVED,  # it has taken our question for this lease
                )
            )
        finally:
            self._watch.close_neighbour(outward)

    def reached(self, number: int, tunnel: Tunnel) -> None:
        """See PushNeighbours."""
        self._order(command_lines.neighbour_reached(number, tunnel.endpoint, self._secrets[number]))

    def unreachable(self, number: int) -> None:
        """See PushNeighbours."""
        self._order(command_lines.neighbour_unreachable(number))

    def all_named(self) -> None:
        """See PushNeighbours."""

    async def settle(self) -> None:
        """See PushNeighbours: an rpc-server waits for nothing."""

    def _order(self, line: str) -> None:
        try:
            self._orders.say(line)
        except (Broken, Closed) as error:  # the lease ends with its rpc-server
            LOG.debug("push_untold", why=error.what)


def push_broken(peer: PeerId, error: MeshdError) -> None:
    """For a tunnel to a neighbour."""
    LOG.warning("push_broken", peer=peer.short, why=error.what)


async def _accepted(stream: Stream) -> Stream:
    try:
        await stream.accepted()
    except asyncio.CancelledError:
        stream.reset(Code.CANCELLED, "not in time")
        raise
    return stream


async def _until_ended(stream: Stream) -> None:
    """Nothing is said on it; what comes is dropped, and gives no credit back."""
    try:
        while True:
            await stream.read()
    except (EndOfStream, Broken):
        return
