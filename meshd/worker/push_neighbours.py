"""The neighbours of one lease: the workers whose servers push to its own server, and it to theirs.

The head of the lease introduces them; it has leased both workers. A neighbour is a mesh member and the lease
that it has granted, so nobody supplies an address. Of two workers one opens the stream, as the head says
(docs/native-protocol.md), and results go both ways on it. First it asks the other worker whether it will
accept the stream. The stream that asks stays open, so that a session made for it is kept while both leases
live.

If both workers are on one machine, their servers get a direct connection (local_way.py). The stream that asks
then controls it: when the stream ends, both daemons cut the connection.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from socket import socket

from meshd.base import local_way, log
from meshd.base.backoff import Backoff
from meshd.base.errors import Broken, EndOfStream, MeshdError, Refused
from meshd.base.local_way import LOCAL, LocalOffer
from meshd.base.tasks import Owner
from meshd.devices.interface import DescriptorSocket, Tunnel, TunnelRequest, Tunnels
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, MetadataValue, PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_push_filter import MeshPushFilter
from meshd.rpc.reading_budget import NodeReading
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import PUSH_SERVICE, Admit, Neighbour, Reached
from meshd.worker.local_way import LocalWay, way_over
from meshd.worker.neighbour_arrivals import NeighbourArrivals
from meshd.worker.turn_times import TurnTimes

REACH_SECONDS = 8.0  # until there is a session with the neighbour
NEIGHBOURS_SECONDS = REACH_SECONDS + 4.0  # workers that open the stream may hear of it a little later
GONE_SECONDS = 20.0  # a neighbour without a session for this long, though both wanted one, gets less time
GONE_REACH_SECONDS = 1.0
_RETRY = Backoff(first=0.1, factor=1.5, most=1.0)
ASK = "ask"  # in the metadata of a stream: asks whether other streams would be accepted
TAKEN = b"\x01"  # the only message on such a stream: the connection is in use
LOG = log.get("worker")


class PushNeighbours:
    """Connect the server of a lease with its neighbours. `keep` and `settle` run in tasks of the lease."""

    def __init__(
        self,
        mesh: Mesh,
        tunnels: Tunnels,
        messages: MessageStream,
        descriptors: DescriptorSocket,
        socket_pair: Callable[[], tuple[socket, int]],
        turns: TurnTimes,
        reading: NodeReading,
    ) -> None:
        """Use `messages` to reach the head and `descriptors` to reach the server.

        `turns` notes what passes.
        """
        self._mesh = mesh
        self._turns = turns
        self._reading = reading
        self._tunnels = tunnels
        self._messages = messages
        self._arrivals = NeighbourArrivals(descriptors, socket_pair, seconds=NEIGHBOURS_SECONDS)
        self._numbers: dict[PeerId, int] = {}  # of the workers that open the stream
        self._open: list[Tunnel | LocalWay] = []
        self._offered: dict[
            PeerId, LocalWay
        ] = {}  # connected, but still unknown whether the other worker uses it
        self._local: dict[int, LocalWay] = {}  # connections that servers use
        self._reported: Counter[tuple[int, str]] = Counter()  # messages on these connections
        self._over = asyncio.Event()

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """The open tunnels to neighbours."""
        return [tunnel.status for tunnel in self._open]

    def note_local(self, what: str, number: int, messages: int, size: int) -> None:
        """Note the totals that the server reports for a local connection, of what `came` or was `pushed`."""
        way = self._local.get(number)
        if way is None:
            return
        self._reported[number, what] += 1
        # The server skips report lines that nobody reads in time.
        if self._reported[number, what] != messages:
            self._turns.lose_count()
        if what == "came":
            way.count(received=size)
            self._turns.arrived(wire.PUSHED)
        else:
            way.count(sent=size)
            self._turns.left(wire.PUSHED)

    def admit(self, admitted: Admit) -> None:
        """Let this worker open the stream from now on. Raises RemoteProtocolError."""
        self._arrivals.name(admitted.number)
        self._numbers[PeerId(admitted.peer)] = admitted.number

    def admits(self, peer: PeerId) -> bool:
        """Say whether the head has admitted this worker."""
        return peer in self._numbers

    def take(self, neighbour: Neighbour) -> None:
        """Expect a connection that this worker opens. Raises RemoteProtocolError."""
        self._arrivals.name(neighbour.number)

    def all_named(self) -> None:
        """Note that the head names no more neighbours; `settle` must run now. Raises RemoteProtocolError."""
        self._arrivals.all_named()

    async def settle(self) -> None:
        """Tell the server that the list is complete, once each neighbour has connected or cannot."""
        late = await self._arrivals.settle()
        for peer, number in self._numbers.items():
            if number in late:
                LOG.info("push_no_way", peer=peer.short, why=f"silent for {NEIGHBOURS_SECONDS:.0f} s")

    # Neighbours to which we open the stream.

    async def keep(self, neighbour: Neighbour) -> None:
        """Open a tunnel to the neighbour, report it, and keep it until it or the lease ends."""
        peer = PeerId(neighbour.peer)
        wanted = self._tunnels.local and not neighbour.always  # compressed, which a user has asked for
        with local_way.offered(wanted=wanted) as offer:
            try:
                asked = await self._ask(peer, neighbour.lease_id, offer)
            except MeshdError as error:
                await self._none(peer, neighbour.number, error.what)
                return
            way = None if offer is None else way_over(peer, offer.take())
        try:
            if way is None:
                await self._lead(peer, neighbour, asked)
            else:
                await self._lead_locally(peer, neighbour.number, asked, way)
        finally:
            asked.write_eof()

    async def _ask(self, peer: PeerId, lease_id: bytes, offer: LocalOffer | None) -> Stream:
        """Wait for a session, and until the head's message has reached the neighbour. Raises MeshdError."""
        local: Mapping[str, MetadataValue] = {} if offer is None else {LOCAL: offer.offered}
        metadata: Mapping[str, MetadataValue] = {"lease": lease_id, ASK: 1, **local}
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
        """Return how many seconds to wait for this neighbour. The load of the model waits as long."""
        now = asyncio.get_running_loop().time()
        for status in self._mesh.peers():
            if status.peer == peer:
                gone = status.state is not PeerState.CONNECTED and not status.present
                return GONE_REACH_SECONDS if gone and now - status.since > GONE_SECONDS else REACH_SECONDS
        return REACH_SECONDS  # gossip about it may still be under way

    async def _none(self, peer: PeerId, number: int, why: str) -> None:
        LOG.info("push_no_way", peer=peer.short, why=why)
        self._arrivals.not_coming(number)
        await self._messages.send(Reached(number, why).encode())

    async def _lead(self, peer: PeerId, neighbour: Neighbour, asked: Stream) -> None:
        number = neighbour.number
        try:
            ours, theirs = self._arrivals.new_pair()
        except MeshdError as error:
            await self._none(peer, number, error.what)
            return
        tunnel = self._tunnel(peer, neighbour, ours)
        self._open.append(tunnel)
        try:
            async with Owner() as owner:
                owner.start(tunnel.serve(), name=f"push {peer.short}")
                self._arrivals.come(number, theirs)
                await self._messages.send(Reached(number, "").encode())
                LOG.info("push_way", peer=peer.short, kind="mesh")
                await _until_ended(asked)
                owner.cancel()
        finally:
            tunnel.close()
            self._open.remove(tunnel)

    async def _lead_locally(self, peer: PeerId, number: int, asked: Stream, way: LocalWay) -> None:
        self._open.append(way)
        try:
            try:
                await asked.write(TAKEN)
            except MeshdError as error:
                await self._none(peer, number, error.what)
                return
            self._use(way, number)
            await self._messages.send(Reached(number, "").encode())
            LOG.info("push_way", peer=peer.short, kind="local")
            await _until_ended(asked)
        finally:
            way.cut()
            self._open.remove(way)

    def _use(self, way: LocalWay, number: int) -> None:
        self._local[number] = way
        self._arrivals.come(number, way.give(), local=True)

    def _tunnel(self, peer: PeerId, neighbour: Neighbour, end: socket) -> Tunnel:
        return self._tunnels.open(
            TunnelRequest(
                peer=peer,
                service=PUSH_SERVICE,
                metadata={"lease": neighbour.lease_id},
                end=end,
                endpoint=str(neighbour.number),
                inspector=self._filter(),
                on_broken=partial(_push_broken, peer),
                compressed=neighbour.compressed,
                always=neighbour.always,
                asks=True,
            )
        )

    # Neighbours that open the stream.

    def asked_by(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> None:
        """Connect to what an admitted neighbour offers. The stream that asks is accepted only after this."""
        before = self._offered.pop(peer, None)
        if before is not None:
            before.cut()
        offered = metadata.get(LOCAL)
        if isinstance(offered, bytes) and self._tunnels.local:
            way = way_over(peer, local_way.come(offered))
            if way is not None:
                self._offered[peer] = way

    async def answer(self, asked: Stream) -> None:
        """Keep the stream on which a neighbour asks, and a local connection, until it or the lease ends.

        Then wait until both halves are closed; lent_streams.py limits that wait.
        """
        way = self._offered.pop(asked.peer, None)
        try:
            async with Owner() as owner:
                ended = owner.start(self._follow(asked, way), name="neighbour asks")
                over = owner.start(self._over.wait(), name="lease over")
                await asyncio.wait([ended, over], return_when=asyncio.FIRST_COMPLETED)
                if way is not None:
                    way.cut()
                asked.write_eof()
                await asyncio.wait([ended])
                owner.cancel()
        finally:
            if way is not None:
                way.cut()

    async def _follow(self, asked: Stream, way: LocalWay | None) -> None:
        """Use the connection once the neighbour says so, and wait for the end of the stream."""
        try:
            said = await asked.read()
        except (EndOfStream, Broken):
            return
        number = self._numbers.get(asked.peer)  # None: the lease is over
        if way is not None and said[:1] == TAKEN and number is not None and self._arrivals.awaits(number):
            self._use(way, number)
        await _until_ended(asked)

    async def serve(self, stream: Stream, on_broken: Callable[[MeshdError], None]) -> None:
        """Connect a stream of an admitted neighbour with the server. Raises Refused, Broken."""
        number = self._numbers.get(stream.peer)
        if number is None or not self._arrivals.awaits(number):
            raise Refused("this lease does not wait for a stream of this member", code="late")
        ours, theirs = self._arrivals.new_pair()
        self._arrivals.come(number, theirs)
        await self._tunnels.join(stream, ours, inspector=self._filter(), on_broken=on_broken, asks=True)

    def _filter(self) -> MeshPushFilter:
        return MeshPushFilter(arrived=self._turns.arrived, left=self._turns.left, reading=self._reading)

    def close(self) -> None:
        """End everything that belongs to the lease."""
        self._numbers.clear()
        while self._offered:
            self._offered.popitem()[1].cut()
        self._over.set()


def _push_broken(peer: PeerId, error: MeshdError) -> None:
    """Log the failure of a tunnel to a neighbour."""
    LOG.warning("push_broken", peer=peer.short, why=error.what)


async def _accepted(stream: Stream) -> Stream:
    try:
        await stream.accepted()
    except asyncio.CancelledError:
        stream.reset(Code.CANCELLED, "not in time")
        raise
    return stream


async def _until_ended(stream: Stream) -> None:
    """Wait for the end of the stream. What arrives is dropped, and gives no credit back."""
    try:
        while True:
            await stream.read()
    except (EndOfStream, Broken):
        return
