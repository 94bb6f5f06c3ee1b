"""The neighbours of one lease: the workers whose servers push to its own server, and it to theirs.

The head of the lease introduces them; it has leased both workers. A neighbour is a mesh member and the lease
that it has granted, so nobody supplies an address. Of two workers one opens the stream, as the head says
(docs/native-protocol.md), and results go both ways on it. First it asks the other worker whether it will
accept the stream. The stream that asks stays open, so that a session made for it is kept while both leases
live.

If both workers are on one machine, or a plain connection leads from one to the other (sealed_ways.py), their
servers get a direct connection. The stream that asks then controls it: when the stream ends, both daemons
cut the connection.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from socket import SHUT_RDWR, SO_RCVBUF, SO_SNDBUF, SOL_SOCKET, socket

from meshd.base import local_way, log
from meshd.base.backoff import Backoff
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, Refused, RemoteProtocolError
from meshd.base.local_way import LOCAL, LocalOffer
from meshd.base.peer_limits import NEIGHBOURS
from meshd.base.tasks import Owner
from meshd.devices.interface import DescriptorSocket, Tunnel, TunnelRequest, Tunnels
from meshd.identity.keys import PeerId
from meshd.mux.events import Code
from meshd.peer.interface import Mesh, MetadataValue, PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import NodeReading
from meshd.rpc.mesh_lease_view import MeshPushFilter
from meshd.tunnel.interface import LISTEN_LOCAL, LISTEN_SEALED, TunnelStatus
from meshd.wire.lease import PUSH_SERVICE, Admit, Neighbour, Reached
from meshd.worker.sealed_ways import SEALED, SealedAnswer, SealedEnd, SealedOffer
from meshd.worker.turn_times import TurnTimes

ARRIVAL, COMPLETE, LOCAL_ARRIVAL, SEALED_ARRIVAL = 1, 2, 3, 4  # kinds of messages of `--neighbours-fd`
LOG = log.get("worker")
_BUFFER_BYTES = 1 << 20  # the kernel grants less where its limit is lower
REACH_SECONDS = 8.0  # until there is a session with the neighbour
NEIGHBOURS_SECONDS = REACH_SECONDS + 4.0  # workers that open the stream may hear of it a little later
GONE_SECONDS = 20.0  # a neighbour without a session for this long, though both wanted one, gets less time
GONE_REACH_SECONDS = 1.0
_RETRY = Backoff(first=0.1, factor=1.5, most=1.0)
ASK = "ask"  # in the metadata of a stream: asks whether other streams would be accepted
TAKEN = b"\x01"  # the only message on such a stream: the connection is in use


class DirectWay:
    """One end of a direct connection between mesh-servers of two workers.

    Each worker hands its mesh-server a duplicate of its end, once. It keeps the original to cut the
    connection, and never reads or writes it again. `cut` is idempotent.
    """

    def __init__(self, peer: PeerId, end: socket, keys: bytes = b"") -> None:
        """Take over `end`. Raises OSError and closes `end` if no descriptor is free.

        `keys`: it leads to another machine, and the mesh-servers seal what crosses it.
        """
        self._peer = peer
        self._end = end
        self.keys = keys
        self._sent = self._received = 0
        try:
            end.setblocking(True)  # the duplicate shares this
            if not keys:  # TCP chooses by itself
                for option in (SO_SNDBUF, SO_RCVBUF):  # Linux uses the first option, macOS both
                    end.setsockopt(SOL_SOCKET, option, _BUFFER_BYTES)
            self._servers = os.dup(end.fileno())
        except OSError:
            end.close()
            raise

    def give(self) -> int:
        """Return the mesh-server's descriptor, which the caller owns from here on."""
        given, self._servers = self._servers, -1
        return given

    def count(self, *, sent: int | None = None, received: int | None = None) -> None:
        """Note totals in bytes, as the mesh-server reports them."""
        self._sent = self._sent if sent is None else sent
        self._received = self._received if received is None else received

    @property
    def status(self) -> TunnelStatus:
        """The totals so far."""
        return TunnelStatus(
            peer=self._peer,
            service=PUSH_SERVICE,
            listen=LISTEN_SEALED if self.keys else LISTEN_LOCAL,
            streams=1,
            sent_bytes=self._sent,
            received_bytes=self._received,
        )

    def cut(self) -> None:
        """Cut the connection for both mesh-servers."""
        if self._servers >= 0:
            os.close(self.give())
        with suppress(OSError):  # closed here, or by the other side
            self._end.shutdown(SHUT_RDWR)
        self._end.close()


def way_over(peer: PeerId, end: socket | None) -> DirectWay | None:
    """Return the connection over `end`, or None without one, or if no descriptor is free."""
    with suppress(OSError):
        return None if end is None else DirectWay(peer, end)
    return None


def sealed_way(peer: PeerId, found: SealedEnd | None) -> DirectWay | None:
    """Return the same for a connection to another machine."""
    with suppress(OSError):
        return None if found is None else DirectWay(peer, found.end, found.keys)
    return None


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
        *,
        seals: bool = False,
    ) -> None:
        """Use `messages` to reach the head and `descriptors` to reach the server.

        `turns` notes what passes. `seals`: the server can seal.
        """
        self._plain = tunnels.plain if seals else None
        self._mesh = mesh
        self._turns = turns
        self._reading = reading
        self._tunnels = tunnels
        self._messages = messages
        self._descriptors = descriptors
        self._socket_pair = socket_pair
        self._numbers: dict[PeerId, int] = {}  # of the workers that open the stream
        self._known: set[int] = set()  # numbers of all workers that were named
        self._awaited: set[int] = set()  # of these, still unknown whether a connection is possible
        self._complete = False
        self._settled = asyncio.Event()
        self._open: list[Tunnel | DirectWay] = []
        self._offered: dict[
            PeerId, DirectWay
        ] = {}  # connected, but still unknown whether the other worker uses it
        self._sealed: dict[PeerId, SealedAnswer] = {}  # the same of connections that may come
        self._local: dict[int, DirectWay] = {}  # connections that servers use
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
        self._name(admitted.number)
        self._numbers[PeerId(admitted.peer)] = admitted.number

    def admits(self, peer: PeerId) -> bool:
        """Say whether the head has admitted this worker."""
        return peer in self._numbers

    def take(self, neighbour: Neighbour) -> None:
        """Expect a connection that this worker opens. Raises RemoteProtocolError."""
        self._name(neighbour.number)

    def _name(self, number: int) -> None:
        if self._complete or number in self._known or number >= NEIGHBOURS.most:
            raise RemoteProtocolError(
                "lease: neighbours have other numbers, and no two the same", code="lease"
            )
        self._known.add(number)
        self._awaited.add(number)

    def all_named(self) -> None:
        """Note that the head names no more neighbours; `settle` must run now. Raises RemoteProtocolError."""
        if self._complete:
            raise RemoteProtocolError("lease: the neighbours were complete before", code="lease")
        self._complete = True
        self._note_settled()

    async def settle(self) -> None:
        """Tell the server that the list is complete, once each neighbour has connected or cannot.

        The head waits for the complete list while it loads weights, so this wait is limited.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(NEIGHBOURS_SECONDS):
                await self._settled.wait()
        late, self._awaited = self._awaited, set()
        self._send(COMPLETE, 0)
        for peer, number in self._numbers.items():
            if number in late:
                LOG.info("push_no_way", peer=peer.short, why=f"silent for {NEIGHBOURS_SECONDS:.0f} s")

    def _note_settled(self, number: int | None = None) -> None:
        """Note that this neighbour has connected, or that there is no connection to it, or none any more."""
        self._awaited -= {number}
        if self._complete and not self._awaited:
            self._settled.set()

    # Connections for the server.

    def _new_pair(self) -> tuple[socket, int]:
        """Return our end of a connection and the server's. Raises Broken if no descriptor is free."""
        try:
            return self._socket_pair()
        except OSError as error:
            raise Broken(f"no connection can be made: {(error.strerror or '').lower()}") from None

    def _hand_over(self, number: int, end: int, kind: int = ARRIVAL, *, keys: bytes = b"") -> None:
        """Hand `end` to the server, and close it here."""
        try:
            self._send(kind, number, end, keys=keys)
        finally:
            os.close(end)
        self._note_settled(number)

    def _send(self, kind: int, number: int, end: int = -1, *, keys: bytes = b"") -> None:
        try:
            self._descriptors.send(kind, number, end, more=keys)
        except (Broken, Closed) as error:  # the lease ends with its server
            LOG.debug("push_untold", why=error.what)

    # Neighbours to which we open the stream.

    async def keep(self, neighbour: Neighbour) -> None:
        """Open a tunnel to the neighbour, report it, and keep it until it or the lease ends."""
        peer = PeerId(neighbour.peer)
        wanted = self._tunnels.local and not neighbour.always  # compressed, which a user has asked for
        with self._offer_sealed(peer, neighbour) as sealed:
            with local_way.offered(wanted=wanted) as offer:
                try:
                    asked = await self._ask(peer, neighbour.lease_id, offer, sealed)
                except MeshdError as error:
                    await self._none(peer, neighbour.number, error.what)
                    return
                way = None if offer is None else way_over(peer, offer.take())
            try:
                if way is None and sealed is not None:
                    way = sealed_way(peer, await sealed.meet(asked))
                if way is None:
                    await self._lead(peer, neighbour, asked)
                else:
                    await self._lead_directly(peer, neighbour.number, asked, way)
            finally:
                asked.write_eof()

    @contextmanager
    def _offer_sealed(self, peer: PeerId, neighbour: Neighbour) -> Iterator[SealedOffer | None]:
        """Yield an offer for the time of the block, or None if either side cannot seal, or may not."""
        if self._plain is None or not neighbour.seals or neighbour.always:
            yield None
            return
        offer = SealedOffer(self._plain, self._tunnels, peer)
        try:
            yield offer
        finally:
            offer.close()

    async def _ask(
        self, peer: PeerId, lease_id: bytes, offer: LocalOffer | None, sealed: SealedOffer | None
    ) -> Stream:
        """Wait for a session, and until the head's message has reached the neighbour. Raises MeshdError."""
        local: Mapping[str, MetadataValue] = {} if offer is None else {LOCAL: offer.offered}
        always: Mapping[str, MetadataValue] = {"lease": lease_id, ASK: 1, **local}
        tries, why = 0, "no answer"
        seconds = self._patience(peer)
        try:
            async with asyncio.timeout(seconds):
                while True:
                    metadata = always if sealed is None else {**always, **sealed.metadata()}
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
        self._note_settled(number)
        await self._messages.send(Reached(number, why).encode())

    async def _lead(self, peer: PeerId, neighbour: Neighbour, asked: Stream) -> None:
        number = neighbour.number
        try:
            ours, theirs = self._new_pair()
        except MeshdError as error:
            await self._none(peer, number, error.what)
            return
        tunnel = self._tunnel(peer, neighbour, ours)
        self._open.append(tunnel)
        try:
            async with Owner() as owner:
                owner.start(tunnel.serve(), name=f"push {peer.short}")
                self._hand_over(number, theirs)
                await self._messages.send(Reached(number, "").encode())
                LOG.info("push_way", peer=peer.short, kind="mesh")
                await _until_ended(asked)
                owner.cancel()
        finally:
            tunnel.close()
            self._open.remove(tunnel)

    async def _lead_directly(self, peer: PeerId, number: int, asked: Stream, way: DirectWay) -> None:
        self._open.append(way)
        try:
            try:
                await asked.write(TAKEN)
            except MeshdError as error:
                await self._none(peer, number, error.what)
                return
            self._use(way, number)
            await self._messages.send(Reached(number, "", direct=True).encode())
            LOG.info("push_way", peer=peer.short, kind=way.status.listen)
            await _until_ended(asked)
        finally:
            way.cut()
            self._open.remove(way)

    def _use(self, way: DirectWay, number: int) -> None:
        self._local[number] = way
        kind = SEALED_ARRIVAL if way.keys else LOCAL_ARRIVAL
        self._hand_over(number, way.give(), kind, keys=way.keys)

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
        self._forget(peer)
        offered = metadata.get(LOCAL)
        if isinstance(offered, bytes) and self._tunnels.local:
            way = way_over(peer, local_way.come(offered))
            if way is not None:
                self._offered[peer] = way
                return
        if self._plain is not None and self._numbers.get(peer) in self._awaited:
            answer = SealedAnswer.of(self._plain, peer, metadata.get(SEALED))
            if answer is not None:
                self._sealed[peer] = answer

    def _forget(self, peer: PeerId) -> None:
        """Drop what it has offered before."""
        if (way := self._offered.pop(peer, None)) is not None:
            way.cut()
        if (answer := self._sealed.pop(peer, None)) is not None:
            answer.close()

    async def answer(self, asked: Stream) -> None:
        """Keep the stream on which a neighbour asks, and a local connection, until it or the lease ends.

        Then wait until both halves are closed; lent_streams.py limits that wait.
        """
        way, answer = self._offered.pop(asked.peer, None), self._sealed.get(asked.peer)
        try:
            if answer is not None and answer.offered == asked.metadata.get(SEALED):  # not of a later stream
                del self._sealed[asked.peer]
                way = await self._met(asked, answer)
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

    async def _met(self, asked: Stream, answer: SealedAnswer) -> DirectWay | None:
        """Return the sealed connection, if there is one within some seconds."""
        with closing(answer):
            way = sealed_way(asked.peer, await answer.come())
            try:
                await answer.confirm(asked, is_usable=way is not None)
            except BaseException as error:
                if way is not None:
                    way.cut()
                if isinstance(error, MeshdError):
                    return None  # the stream has ended, as is noticed next
                raise
            return way

    async def _follow(self, asked: Stream, way: DirectWay | None) -> None:
        """Use the connection once the neighbour says so, and wait for the end of the stream."""
        try:
            reply = await asked.read()
        except (EndOfStream, Broken):
            return
        number = self._numbers.get(asked.peer)  # None: the lease is over
        if way is not None and reply[:1] == TAKEN and number is not None and number in self._awaited:
            self._use(way, number)
        elif way is not None:
            way.cut()  # the neighbour's server may have it already, and must not wait for ours
        await _until_ended(asked)

    async def serve(self, stream: Stream, on_broken: Callable[[MeshdError], None]) -> None:
        """Connect a stream of an admitted neighbour with the server. Raises Refused, Broken."""
        number = self._numbers.get(stream.peer)
        if number is None or number not in self._awaited:
            raise Refused("this lease does not wait for a stream of this member", code="late")
        ours, theirs = self._new_pair()
        self._hand_over(number, theirs)
        await self._tunnels.join(stream, ours, inspector=self._filter(), on_broken=on_broken, asks=True)

    def _filter(self) -> MeshPushFilter:
        return MeshPushFilter(arrived=self._turns.arrived, left=self._turns.left, reading=self._reading)

    def close(self) -> None:
        """End everything that belongs to the lease."""
        self._numbers.clear()
        for peer in [*self._offered, *self._sealed]:
            self._forget(peer)
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
